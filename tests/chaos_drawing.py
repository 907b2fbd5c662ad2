"""Drawing random programs from seeds."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

from chaos_caches import add_caches
from chaos_kinds import GIVEN, NARROW, Sent, Spanning, Spending, by_cost, processes
from chaos_programs import Crowd, Program, Session, failing, router_of, stuck, stuck_async
from chaos_reference import Chained, Merged, Route, Source, Turns, Work
from fuzz_ops import (
    EXPANDS,
    FILTERS,
    GENERATORS,
    PIPES,
    SOURCES,
    Asked,
    AskedLater,
    BoomError,
    Gather,
    Op,
    coroutine,
    filter_async,
    filter_sync,
    sync,
)

from spdl_async import Retry, per_thread

FACES = (
    "caller", "caller", "own", "sync", "sync", "inline", "short async", "short sync",
    "epochs async", "epochs sync",
)  # fmt: skip
STOPS = ("leave", "close", "raise", "cancel", "elsewhere", "any time", "drop")
KINDS = (
    *(("pipe", kind) for kind in (*PIPES, "session", "spanning", "per thread", "process")),
    *(("pipe", kind) for kind in ("stuck", "stuck async")),
    *(("generator", kind) for kind in GENERATORS),
    *(("expand", kind) for kind in EXPANDS),
    *(("filter", kind) for kind in FILTERS),
    *(("aggregate", kind) for kind in ("size", "instance", "factory", "within", "cost")),
    *(("aggregate", kind) for kind in ("bucket", "hurried")),
    *((verb, "") for verb in ("disaggregate", "shuffle", "take", "skip", "enumerate")),
    *(("route", kind) for kind in ("items", "items", "keys", "lists", "lists", "gathering")),
)
SHAPES = ("shuffle", "take", "skip", "enumerate")
HURRY = 0.0005  # seconds: a ``within`` that comes true now and then
FINITE_WAIT = 60.0  # seconds: a ``within`` that never comes true
TIMEOUT = 0.05


def draw(seed: int) -> Program:
    """Draw the program of a seed."""
    return Drawing(seed).program


class Drawing:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.program = program = Program(seed=seed)
        self.key = 0
        self.failures = random.random() < 0.6
        program.face = random.choice(FACES)
        program.uvloop = random.random() < 0.5
        is_epochs = program.face.startswith("epochs")
        program.epochs = random.choice((2, 3)) if is_epochs else 1
        program.overlap = random.random() < 0.7
        program.sink = random.randint(1, 4)
        self.more = True  # until who is in a list with whom is unknown
        program.tree = self.chained(0)
        self.plan_end()
        add_caches(program, self.failures)

    def plan_end(self) -> None:
        """Draw how the pass is run and ended."""
        random, program = self.random, self.program
        threads = random.choice((None, None, 1, 2, 3, "given", "narrow"))
        pools = {"given": GIVEN, "narrow": NARROW}
        # A timeout takes threads of a given pool away, which other rounds share.
        if threads in pools and not program.timed:
            program.build["executor"] = pools[threads]
        elif isinstance(threads, int):
            program.build["num_threads"] = threads
        if self.chance(5):  # little, but enough for whatever gathers
            program.build["max_bytes"] = random.choice((20_000, 200_000))
        policy = random.choice(("raise", "skip", self.policy())) if self.failures else "raise"
        program.build["on_error"] = policy or "raise"
        if self.failures and policy not in (None, "raise") and self.chance(4):
            program.build["max_failures"] = limit = random.choice((0, 2, 5))
            program.shared = Spending(policy, None)
            program.limit = limit
        if random.random() < 0.35:
            program.stop = random.choice(STOPS)
            program.taken = random.choice((0, 1, 2, random.randint(0, 30)))

    def chance(self, one_in: int) -> bool:
        """Return true once in so many draws."""
        return self.random.randrange(one_in) == 0

    def policy(self) -> Any:
        """Draw the policy of a stage."""
        if not self.failures:
            return None
        words = (None, None, "skip", "skip", "raise", Asked, AskedLater)
        chosen = self.random.choice(words)
        if isinstance(chosen, type):
            return chosen(self.random.randint(0, 99), self.random.choice((0, 0, 2, 20)))
        return chosen

    def op(self) -> Op:
        """Draw how an op behaves."""
        self.key += 1
        again = self.random.randint(0, 3) if self.program.epochs == 1 else 0
        fails = self.random.choice((0, 0, 0, 0, 300, 60, 60, 12, 2)) if self.failures else 0
        op = Op(
            self.key,
            fails=fails,
            drops=self.random.choice((0, 0, 7)),
            jitter=self.random.choice(("none", "none", "yield", "wait")),
            recovers=again,
        )
        self.program.ops.append(op)
        return op

    def chained(self, depth: int) -> Chained:
        """Draw a chain."""
        if depth == 2 or not self.chance(3):
            op = self.op()
            op.recovers = op.drops = 0
            count = self.random.choice((0, 1, 2, 7, 20, 20, 40))
            kind = self.random.choice(sorted(SOURCES))
            start = self.key * 1000
            tree = Chained(Source(kind, op, range(start, start + count), self.policy()))
        else:
            tree = Chained(self.merged(depth))
        count = self.random.randint(0, 2 if depth else 5) if self.more else 0
        tree.stages, more = self.stages(count, depth, in_route=None)
        self.more &= more
        return tree

    def merged(self, depth: int) -> Merged:
        """Draw several chains, and how they are mixed."""
        turns: Turns = self.random.choice(
            ("turns", "turns", "first", "only", "weights", "zip", "mix")
        )
        count = self.random.randint(1, 3)
        branches = [self.chained(depth + 1) for _ in range(count)]
        if not self.program.exact and turns in ("first", "zip"):
            turns = "turns"  # which items came is unknown
        if turns == "mix" and self.program.face == "inline":
            turns = "turns"
        weights = None
        if turns == "only":
            chosen = self.random.randrange(count)
            weights = [int(at == chosen) for at in range(count)]
        elif turns == "weights":
            weights = [self.random.randint(0, 2) for _ in range(count)]
            weights[0] = 3
            self.program.exact = False
        self.program.cut |= turns in ("first", "zip")
        return Merged(turns, branches, weights)

    def stages(
        self, count: int, depth: int, in_route: str | None
    ) -> tuple[list[Work | Route], bool]:
        """Draw stages; ``in_route``: the order of the route that they are a branch of."""
        made: list[Work | Route] = []
        lists = 0
        for _ in range(count):
            verb, kind = self.random.choice(KINDS)
            if (verb, kind) == ("route", "lists") and self.program.exact and in_route is None:
                made.append(self.work("aggregate", "size", None))
                lists += 1
            if not self.fits(verb, kind, made, lists, depth, in_route):
                continue
            if verb == "route":
                made.append(self.route(kind, depth, in_route))
                if kind == "gathering":
                    return made, False  # lists among other items
                continue
            if kind == "hurried":
                made.append(self.hurried())
                return made, False
            made.append(self.work(verb, kind, in_route))
            lists = max(0, lists + (verb == "aggregate") - (verb == "disaggregate"))
            if verb == "aggregate" and not self.program.exact:
                return made, False  # who is in a list with whom is unknown
        return made, True

    def fits(
        self,
        verb: str,
        kind: str,
        made: list[Work | Route],
        lists: int,
        depth: int,
        in_route: str | None,
    ) -> bool:
        """Tell whether a stage can be next."""
        exact = self.program.exact
        if verb == "route":
            if in_route == "lists":
                return False
            if kind == "lists":
                return exact and bool(made) and made[-1].text.startswith("aggregate")
            return depth < 2 and not (kind == "gathering" and in_route == "input")
        if in_route == "lists":
            return verb == "pipe" and not kind.startswith("stuck")
        if verb == "disaggregate":
            return lists > 0 or (self.failures and exact)
        if verb in ("shuffle", "aggregate", "take") and in_route == "input":
            return False
        if verb in SHAPES:
            return exact and not (verb == "take" and in_route) and not (depth and verb == "take")
        if kind == "hurried":  # where everything is known, and nothing comes below
            return exact and not depth and in_route is None
        if kind == "process":
            return self.chance(3)
        if kind == "stuck":
            return self.program.face != "inline" and self.chance(3)
        return kind != "stuck async" or self.chance(3)

    def work(self, verb: str, kind: str, in_route: str | None) -> Work:
        """Draw one stage."""
        if verb == "disaggregate":
            return Work(verb, None, None, {}, "disaggregate")
        if verb in SHAPES:
            return self.shape(verb)
        op = self.op()
        options: dict[str, Any] = {}
        if verb == "aggregate":
            options["drop_last"] = self.program.exact and self.chance(2)
            if kind == "within":
                options["within"] = FINITE_WAIT
        else:
            options["concurrency"] = self.random.randint(1, 8)
            options["output_order"] = "completion" if self.chance(7) and not in_route else "input"
            self.program.exact &= options["output_order"] == "input"
            if self.failures and self.chance(3):
                on = self.random.choice(((BoomError,), (Exception,), (KeyError,)))
                wait = self.random.choice((0.0, 0.0005))
                options["retry"] = Retry(self.random.randint(2, 4), backoff=wait, on=on)
            if verb in ("pipe", "filter"):
                options["fuse"] = self.chance(2)
        if not (verb == "aggregate" and kind in ("size", "within")):
            options["on_error"] = self.policy()
        if kind.startswith("stuck"):
            self.program.timed = True
            options.update(timeout=TIMEOUT, on_error="skip")
            options.pop("retry", None)
        if kind == "process":
            options["executor"] = processes()
            op.recovers = 0  # its calls are counted in another process
            self.program.copied = True
        spending = None if verb == "aggregate" else self.spending(options)
        argument, reference = self.arguments(verb, kind, op, options)
        name = "pipe" if verb == "generator" else verb
        text = f"{verb} {kind} {op} {argument}"
        return Work(name, argument, reference, options, text, spending)

    def hurried(self) -> Work:
        """Draw lists that leave in a hurry; plain loops gather nothing, since any split is right."""
        self.program.split = size = self.random.randint(1, 9)
        return Work("aggregate", size, 1, {"within": HURRY}, f"aggregate({size}) in a hurry")

    def spending(self, options: dict[str, Any]) -> Spending | None:
        """Draw a budget."""
        if not self.failures or options["on_error"] == "raise" or not self.chance(4):
            return None
        limit: int | Fraction = self.random.choice((0, 1, 4, Fraction(1, 4), Fraction(1, 50)))
        if isinstance(limit, Fraction) and not self.program.exact:
            limit = 3  # how many have failed by the hundredth call depends on the order
        options["max_failures"] = limit
        spending = Spending(options["on_error"], limit)
        self.program.budgets.append(spending)
        return spending

    def shape(self, verb: str) -> Work:
        """Draw a verb that chooses, numbers or reorders items."""
        options = {"seed": self.random.randint(0, 9)} if verb == "shuffle" else {}
        number = self.random.choice((1, 2, 5, 30) if verb == "shuffle" else (0, 1, 3, 10, 50))
        self.program.cut |= verb == "take"
        return Work(verb, number, number, options, f"{verb}({number})")

    def arguments(self, verb: str, kind: str, op: Op, options: dict[str, Any]) -> tuple[Any, Any]:
        """Return what the pipeline and what plain loops call."""
        made: Any
        if verb == "aggregate":
            if kind in ("size", "within"):
                size = self.random.randint(1, 9)
                return size, size
            if kind in ("cost", "bucket"):
                made = by_cost(op, kind, self.random.randint(1, 6))
                return made, made
            gather = Gather(op, flush_fails=self.program.exact)
            made = gather if kind == "instance" else lambda: gather.__deepcopy__(None)
            return made, made
        if kind == "process":
            return Sent(op), sync(op)
        if kind in ("session", "spanning"):
            session = Session(op) if kind == "session" else Spanning(op)
            self.program.sessions.append(session)
            return session, session
        if kind == "per thread":
            return per_thread(lambda: sync(op)), sync(op)
        if kind.startswith("stuck"):
            return (stuck(op) if kind == "stuck" else stuck_async(op)), failing(op)
        table = {"pipe": PIPES, "generator": GENERATORS, "expand": EXPANDS, "filter": FILTERS}
        call = table[verb][kind](op)
        if verb in ("pipe", "filter") and kind in ("sync", "coroutine"):
            crowd = Crowd(options["concurrency"])
            self.program.crowds.append(crowd)
            plain = {"pipe": (sync, coroutine), "filter": (filter_sync, filter_async)}[verb]
            made = plain[kind == "coroutine"](op)
            return (crowd.around if kind == "sync" else crowd.around_async)(made), made
        return call, call

    def route(self, kind: str, depth: int, in_route: str | None) -> Route:
        """Draw a router and its branches."""
        op, count = self.op(), self.random.randint(1, 3)
        order = (
            "completion" if kind == "gathering" or (not in_route and self.chance(5)) else "input"
        )
        options: dict[str, Any] = {
            "concurrency": self.random.randint(1, 4),
            "output_order": order,
            "batched": kind == "lists",
            "on_error": self.policy(),
        }
        self.program.exact &= order == "input"
        # In lists only 1→1 stages; elsewhere those that hold nothing back, or anything.
        within = "lists" if kind == "lists" else "completion" if kind == "gathering" else "input"
        branches = [
            self.stages(self.random.randint(0, 2), depth + 1, within)[0] for _ in range(count)
        ]
        router = router_of(op, count, kind, self.chance(2))
        return Route(op, router, branches, options, f"route {kind} {op}")
