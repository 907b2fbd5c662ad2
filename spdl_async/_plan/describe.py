"""A plan in words and as a picture."""

from __future__ import annotations

from spdl_async._plan.bounds import bounds, source_items_bound
from spdl_async._plan.place import drains
from spdl_async._plan.steps import (
    AggregatePlan,
    BatchPlan,
    FlattenPlan,
    FlowPlan,
    MapPlan,
    OpPlan,
    Plan,
    StepPlan,
)


def text(plan: Plan) -> str:
    """Return the description of a plan as plain text."""
    lines = [f"pipeline {plan.name!r}"]
    source = plan.source
    where = "pulled in a thread of its own"
    if source.builtin or source.on_loop:
        where = "read on the loop"
    if source.op.lifespan is not None:
        where += ", in its lifespan"
    lines.append(f"  source {source.op.name!r}: {where}{policy_text(source.op)}")
    lines += [f"  {step_text(step)}" for step in plan.steps]
    lines.append(f"  sink: {plan.sink_size} waiting results")
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
    lines.append(f"seed: {plan.seed}")
    return "\n".join(lines)


def policy_text(op: OpPlan) -> str:
    """Return the failure policy of an op, where it is not the default."""
    if op.policy.action == "raise":
        return ""
    if op.policy.max_failures is None:
        return ", skips failures"
    return f", skips failures (at most {op.policy.max_failures})"


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
        return f"{step.name}: lists of {step.size}, on the loop{tail}"
    if isinstance(step, AggregatePlan):
        span = "" if step.op.lifespan is None else ", in its lifespan"
        return (
            f"{step.op.name}: aggregator, in a thread, one call at a time{span}"
            f"{policy_text(step.op)}"
        )
    if isinstance(step, FlattenPlan):
        return f"{step.op.name}: lists and tuples taken apart, on the loop{policy_text(step.op)}"
    order = "input order" if step.ordered else "completion order"
    ops = step.ops if isinstance(step, MapPlan) else (step.op,)
    names = " + ".join(op.name for op in ops)
    fused = ", fused into one hop" if len(ops) > 1 else ""
    many = ", 1→n" if isinstance(step, FlowPlan) else ""
    owning = [op.name for op in ops if op.lifespan is not None]
    spans = f", lifespan of {' and '.join(owning)}" if owning else ""
    return (
        f"{names}: {place_text(step)}, concurrency {step.concurrency}, {order}{fused}{many}{spans}"
        f"{policy_text(ops[0])}"
    )


def mermaid(plan: Plan) -> str:
    """Return a plan as a Mermaid flow chart."""
    labels = [f"source: {plan.source.op.name}"]
    for step in plan.steps:
        if isinstance(step, BatchPlan):
            labels.append(step.name)
        elif isinstance(step, MapPlan):
            names = " + ".join(op.name for op in step.ops)
            labels.append(f"{names} ×{step.concurrency}")
        elif isinstance(step, FlowPlan):
            labels.append(f"{step.op.name} ×{step.concurrency} 1→n")
        else:
            labels.append(step.op.name)
    labels.append(f"sink: {plan.sink_size}")
    lines = ["flowchart LR"]
    for at, label in enumerate(labels):
        clean = " ".join(label.replace('"', "'").split())
        lines.append(f'    s{at}["{clean}"]')
    lines += [f"    s{at} --> s{at + 1}" for at in range(len(labels) - 1)]
    return "\n".join(lines)
