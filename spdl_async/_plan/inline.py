"""What a plan may not have when it is to run in the calling thread."""

from __future__ import annotations

from spdl_async._plan.steps import FlowPlan, MapPlan, Plan, all_steps
from spdl_async.errors import BuildError


def check_inline(plan: Plan) -> None:
    """Raise ``BuildError`` where a sync op has a timeout, which nobody could enforce."""
    for step in all_steps(plan):
        if isinstance(step, (MapPlan, FlowPlan)) and not step.on_loop:
            for op in step.ops if isinstance(step, MapPlan) else (step.op,):
                if op.timeout is not None:
                    raise BuildError(
                        f"run_sync(inline=True): stage {op.name!r} has timeout={op.timeout:g}, but its "
                        f"sync op would run in the calling thread, which nothing can interrupt; build "
                        f"the pipeline without that timeout to debug it"
                    )
