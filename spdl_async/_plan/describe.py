"""A plan in words and as a picture."""

from __future__ import annotations

from collections.abc import Iterable

from spdl_async._plan.bounds import bounds, epochs_bound, source_items_bound
from spdl_async._plan.caching import CachePlan, cache_text
from spdl_async._plan.copying import CopyPlan, copy_text
from spdl_async._plan.place import drains
from spdl_async._plan.shapes import SHAPE_PLANS, shape_text
from spdl_async._plan.steps import (
    AggregatePlan,
    BatchPlan,
    ChainPlan,
    FlattenPlan,
    FlowPlan,
    MapPlan,
    MergePlan,
    OpPlan,
    Plan,
    RoutePlan,
    StepPlan,
)
from spdl_async.spec.sizes import bytes_text


def text(plan: Plan) -> str:
    """Return the description of a plan as plain text."""
    lines = [f"pipeline {plan.name!r}"]
    lines += chain_text(plan, "  ")
    last = plan.steps[-1] if plan.steps else None
    there = ", on the device" if isinstance(last, CopyPlan) and last.to == "device" else ""
    lines.append(f"  sink: {plan.sink_size} waiting results{there}")
    lines.append(
        f'runs, with loop="auto", on {"the caller’s" if plan.loop == "caller" else "its own"} loop: '
        f"{plan.loop_reason}"
    )
    lines.append(f"thread pool: {plan.num_threads} threads")
    lines.append("at most in flight:")
    for bound in bounds(plan):
        number = "not bounded by us" if bound.elements is None else str(bound.elements)
        lines.append(f"  {bound.place}: {number} ({bound.what})")
    total = source_items_bound(plan)
    if total is not None:
        lines.append(f"  in sum at most {total} source items")
        lines.append(f"  with epochs(), two passes together: at most {epochs_bound(plan)}")
    if plan.max_bytes is not None:
        lines.append(
            f"  and values of at most {bytes_text(plan.max_bytes)} together, as estimated by "
            f"{getattr(plan.size_of, '__name__', plan.size_of)}"
        )
    lines.append(f"seed: {plan.seed}")
    return "\n".join(lines)


def chain_text(chain: Plan | ChainPlan, indent: str) -> list[str]:
    """Return the lines of a source and the steps below it."""
    source, lines = chain.source, list[str]()
    if isinstance(source, MergePlan):
        lines.append(f"{indent}{source.op.name}: {merge_text(source)}")
        for at, branch in enumerate(source.branches):
            unread = "" if source.reads(at) else ", never read (weight 0)"
            lines.append(f"{indent}  branch {at}{unread}")
            lines += chain_text(branch, indent + "    ")
    else:
        where = "pulled in a thread of its own"
        if source.builtin or source.on_loop:
            where = "read on the loop"
        if source.op.lifespan is not None:
            where += ", in its lifespan"
        lines.append(f"{indent}source {source.op.name!r}: {where}{policy_text(source.op)}")
    return lines + steps_text(chain.steps, indent)


def merge_text(plan: MergePlan) -> str:
    """Return how the branches of a merge come together."""
    if plan.how == "zip":
        return "tuples of one item of each branch" + (", strict" if plan.strict else "")
    if plan.how == "mix":
        return "mixed by a function of yours, on the loop"
    how = "in turns" if plan.weights is None else f"drawn with weights {list(plan.weights)}"
    return f"{how}, to the end of the {'last' if plan.stop == 'all' else 'first'} branch"


def steps_text(steps: Iterable[StepPlan], indent: str) -> list[str]:
    """Return the lines of steps, those of branches below their route."""
    lines: list[str] = []
    for step in steps:
        lines.append(f"{indent}{step_text(step)}")
        if isinstance(step, RoutePlan):
            for label, branch in zip(step.labels, step.branches, strict=True):
                what = label if isinstance(step, CachePlan) else f"branch {label}"
                lines.append(f"{indent}  {what}" + ("" if branch else ": nothing is done"))
                lines += steps_text(branch, indent + "    ")
    return lines


def policy_text(op: OpPlan) -> str:
    """Return the failure policy of an op, where it is not the default."""
    text = "" if op.timeout is None else f", {op.timeout:g} s a call"
    if op.policy.action == "raise":
        return text
    text += ", skips failures" if op.policy.handler is None else ", asks a function about failures"
    if op.policy.max_failures is None:
        return text
    return f"{text} (at most {op.policy.max_failures})"


def retry_text(ops: Iterable[OpPlan]) -> str:
    """Return which ops are called again after a failure."""
    return "".join(
        f", {op.name} called up to {op.retry.attempts} times" for op in ops if op.retry is not None
    )


def place_text(step: MapPlan | FlowPlan) -> str:
    """Return where a step's calls run."""
    if step.on_loop:
        return "on the loop"
    if step.executor is None:
        return "in threads"
    kind = type(step.executor).__name__
    return (
        f"on a given {kind}" if drains(step.executor) else f"on a given {kind}, one call a submit"
    )


def step_text(step: StepPlan) -> str:
    """Return one line for a step."""
    if isinstance(step, BatchPlan):
        tail = ", last short batch dropped" if step.drop_last else ""
        return f"{step.name}: lists of {step.size}, on the loop{tail}{within_text(step)}"
    if isinstance(step, AggregatePlan):
        span = "" if step.op.lifespan is None else ", in its lifespan"
        return (
            f"{step.op.name}: aggregator, in a thread, one call at a time{span}{within_text(step)}"
            f"{policy_text(step.op)}"
        )
    if isinstance(step, SHAPE_PLANS):
        return shape_text(step)
    if isinstance(step, FlattenPlan):
        return f"{step.op.name}: lists and tuples taken apart, on the loop{policy_text(step.op)}"
    if isinstance(step, CachePlan):
        return cache_text(step)
    if isinstance(step, CopyPlan):
        return copy_text(step) + policy_text(step.ops[0])
    order = "input order" if step.ordered else "completion order"
    if isinstance(step, RoutePlan):
        return f"{step.name}: {'elements of lists' if step.batched else 'items'} routed, {order}"
    ops = step.ops if isinstance(step, MapPlan) else (step.op,)
    names = " + ".join(op.name for op in ops)
    fused = ", fused into one hop" if len(ops) > 1 else ""
    many = ", 1→n" if isinstance(step, FlowPlan) else ""
    owning = [op.name for op in ops if op.lifespan is not None]
    spans = f", lifespan of {' and '.join(owning)}" if owning else ""
    return (
        f"{names}: {place_text(step)}, concurrency {step.concurrency}, {order}{fused}{many}{spans}"
        f"{policy_text(ops[0])}{retry_text(ops)}"
    )


def within_text(step: BatchPlan | AggregatePlan) -> str:
    """Return how long the first item of a batch waits for others, where that is limited."""
    return "" if step.within is None else f", short ones after {step.within:g} s"


def mermaid(plan: Plan) -> str:
    """Return a plan as a Mermaid flow chart."""
    chart = Chart()
    ends = chart.chain(plan)
    chart.node(f"sink: {plan.sink_size}", ends)
    return "\n".join(["flowchart LR", *chart.nodes, *chart.edges])


class Chart:
    """Nodes and edges of a flow chart, in the order of the plan."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.edges: list[str] = []

    def node(self, label: str, above: list[int], on_edge: str = "") -> list[int]:
        """Add a node below others; return it as the end of what is drawn so far."""
        at = len(self.nodes)
        self.nodes.append(f'    s{at}["{_clean(label)}"]')
        text = f"|{_clean(on_edge)}|" if on_edge else ""
        self.edges += [f"    s{one} -->{text} s{at}" for one in above]
        return [at]

    def chain(self, chain: Plan | ChainPlan) -> list[int]:
        """Draw a source and what is below it."""
        source = chain.source
        if isinstance(source, MergePlan):
            branches = [self.chain(branch) for branch in source.branches]
            ends = self.node(source.op.name, [end for branch in branches for end in branch])
        else:
            ends = self.node(f"source: {source.op.name}", [])
        return self.steps(chain.steps, ends)

    def steps(self, steps: Iterable[StepPlan], ends: list[int], on_edge: str = "") -> list[int]:
        """Draw steps below ``ends``."""
        for step in steps:
            if isinstance(step, RoutePlan):
                branches = [
                    self.steps(branch, ends, label)
                    for label, branch in zip(step.labels, step.branches, strict=True)
                ]
                found = ends if isinstance(step, CachePlan) else []
                ends = self.node(step.name, [*found, *(end for b in branches for end in b)])
            else:
                ends = self.node(_label(step), ends, on_edge)
            on_edge = ""
        return ends


def _clean(text: str) -> str:
    return " ".join(text.replace('"', "'").replace("|", "/").split())


def _label(step: StepPlan) -> str:
    if isinstance(step, (BatchPlan, RoutePlan, *SHAPE_PLANS)):
        return step.name
    if isinstance(step, CopyPlan):
        return f"{step.ops[0].name}: {step.kit.target if step.to == 'device' else 'host'}"
    if isinstance(step, MapPlan):
        return f"{' + '.join(op.name for op in step.ops)} ×{step.concurrency}"
    if isinstance(step, FlowPlan):
        return f"{step.op.name} ×{step.concurrency} 1→n"
    return step.op.name
