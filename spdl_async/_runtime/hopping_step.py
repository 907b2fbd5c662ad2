"""What steps share whose calls run in hops: slots, dispatch, wake-ups, and when to announce."""

from __future__ import annotations

from asyncio import TimerHandle
from collections import deque
from concurrent.futures import Executor
from typing import Any

from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.failures import Judge, note_once
from spdl_async._runtime.hop import QUANTUM, SHARE_SECONDS, BaseHop, Line
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.retrying import Backoff
from spdl_async._runtime.slotted_step import SlottedStep
from spdl_async._runtime.step import Host, guarded
from spdl_async._runtime.ticket import Item

COMPANY_SECONDS = 0.001  # a finished item waits at most this long for others to be announced with
SAMPLE = 16
BURST = 8


class HoppingStep(SlottedStep):
    """A step whose calls run in hops: slots, dispatch, wake-ups, and the size of a share.

    Attributes:
        inbox: accepted items (or flows) that no thread has taken yet.
        idle: hops without a job; the others are the slots taken.
        ended: hops that gave their slot back and that the loop has not seen yet.
        share: how many finished items are announced together.
    """

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        *,
        concurrency: int,
        executor: Executor | None,
        ordered: bool,
        pace: Pace,
        judges: list[Judge],
        meters: list[Meter],
    ) -> None:
        super().__init__(
            host,
            source,
            out,
            concurrency=concurrency,
            ordered=ordered,
            pace=pace,
            judges=judges,
            meters=meters,
        )
        self.line = Line(host.pool, executor)
        self.inbox: deque[Any] = deque()
        self.hops: list[BaseHop] = []
        self.idle: list[BaseHop] = []
        self.ended: deque[BaseHop] = deque()
        self.at_work: set[BaseHop] = set()
        self.dispatching = False
        self.woken = False
        self.share = 1
        self.quick = 0
        self.slow = 0
        self.quick_busy = 0.0
        self.pauses = 0
        self.results = 0
        self.results_seen = 0
        self.progressed = 0.0
        self.due = 0.0
        self.refusal: BaseException | None = None
        self.halt_seen = False
        self.timer: TimerHandle | None = None
        if any(judge.retries is not None for judge in judges):
            self.backoff = Backoff(host.loop, self.count_retry, self.start_due)

    def new_hop(self) -> BaseHop:
        """Make a hop for one more slot."""
        raise NotImplementedError

    @property
    def active(self) -> int:
        """Slots taken."""
        return len(self.hops) - len(self.idle)

    @property
    def quiet(self) -> bool:
        return not self.active

    def slots_taken(self) -> int:
        return self.active

    def use_slots(self) -> None:
        if not self.halted:
            self.dispatch()
            self.arm()

    def wake(self) -> None:
        """Have the loop look at what threads have finished; from any thread, coalesced."""
        if not self.woken:
            self.woken = True
            try:
                self.host.loop.call_soon_threadsafe(self.on_wake)
            except RuntimeError:  # the loop is closed: nobody waits for the results any more
                pass

    @guarded
    def on_wake(self) -> None:
        """Take back slots and finished items, on the loop."""
        self.woken = False
        self.take_back()
        if self.halted:
            self.on_halt()
        else:
            self.dispatch()
        self.after_wake()
        if self.backoff is not None:
            self.backoff.arm()
            if self.halted:
                self.start_due()
        if not self.halted:
            self.measure()
            self.arm()
        self.advance()
        if self.successor is not None:
            self.hand_over()

    def after_wake(self) -> None:
        """Do what a kind of step has to do at a wake-up."""

    # Calls that are made again

    def was_tried(self, what: Any) -> bool:
        """Tell whether a call on this element of the inbox is one that is made again."""
        return any(j.retries is not None and j.retries.has_tried(what) for j in self.judges)

    def to_be_repeated(self) -> int:
        if self.backoff is None:
            return 0
        # Those whose wait is over are in front of the inbox, where start_due() will find them.
        return len(self.backoff) + sum(map(self.was_tried, self.inbox))

    def go_on(self, hop: BaseHop, what: Any) -> None:
        """Give a slot to a call that is made again."""
        raise NotImplementedError

    @guarded
    def start_due(self) -> None:
        """Make the calls whose wait is over, before those that were not begun yet."""
        backoff = self.backoff
        if backoff is None or self.cancelled:
            return
        if not self.halted:
            while backoff.due:
                self.inbox.appendleft(backoff.due.pop())
            self.dispatch()
            self.arm()
            return
        # After a failure that ends the run nothing is begun, but what was begun goes on: with input
        # order the consumer is to get what comes before that failure.
        while self.inbox:
            what = self.inbox.popleft()
            if self.was_tried(what):
                backoff.due.append(what)
        while backoff.due and (hop := self.free_hop()) is not None:
            self.at_work.add(hop)
            self.go_on(hop, backoff.due.popleft())

    def free_hop(self) -> BaseHop | None:
        """Return a hop for a free slot."""
        if self.idle:
            return self.idle.pop()
        if len(self.hops) >= self.concurrency:
            return None
        hop = self.new_hop()
        self.hops.append(hop)
        return hop

    # Slots

    def take_back(self) -> None:
        """Make the slots of ended hops available."""
        ended = self.ended
        if ended:
            while ended:
                hop = ended.popleft()
                self.collect_hop(hop)
                self.take_pace(hop)
                self.at_work.discard(hop)
                self.idle.append(hop)
            if self.quiet:
                self.disarm()  # nobody is at work whose results it could find
                self.host.became_quiet()
        if self.successor is not None:
            self.hand_over()

    def collect_hop(self, hop: BaseHop) -> None:
        """Add an ended hop's numbers to the meters."""

    def on_halt(self) -> None:
        """React once to a halt that a hop has decided: a failure that ends the run."""
        if self.cancelled or self.halt_seen:
            return
        self.halt_seen = True
        if self.refusal is not None:
            self.fatal = self.refusal
        self.stop_starting()

    def refused(self, error: BaseException) -> None:
        """Hear from any thread that the executor takes no more work."""
        if self.refusal is None:
            self.refusal = error
            note_once(
                error,
                f"spdl_async: the executor of stage {self.meters[0].name!r} does not take work",
            )
        self.halted = True

    def dispatch(self) -> None:
        """Start as many hops as the inbox keeps busy."""
        waiting = len(self.inbox)
        if not waiting:
            return
        wanted = waiting if self.share == 1 else max(1, waiting // self.share) - self.active
        for started in range(wanted):
            if not self.inbox:  # quick ops: the first threads have emptied it meanwhile
                return
            if started == BURST:
                self.dispatch_later()
                return
            if self.idle:
                hop = self.idle.pop()
            elif len(self.hops) < self.concurrency:
                hop = self.new_hop()
                self.hops.append(hop)
            else:
                return
            self.at_work.add(hop)
            if not self.submit(hop):
                return

    def dispatch_later(self) -> None:
        """Start further hops in the loop's next turn, if they still have something to do."""
        if not self.dispatching:
            self.dispatching = True
            self.host.loop.call_soon(self.dispatch_again)

    @guarded
    def dispatch_again(self) -> None:
        """Go on with a dispatch."""
        self.dispatching = False
        if not self.halted:
            self.dispatch()

    def submit(self, hop: BaseHop) -> bool:
        """Queue a hop's job; ``False`` where the executor refuses, which ends the run."""
        try:
            self.line.submit(hop)
        except RuntimeError as error:
            self.refused(error)
            self.ended.append(hop)
            self.wake()
            return False
        return True

    @guarded
    def on_timer(self) -> None:
        """Look after items that were to be announced together, and slots left empty meanwhile.

        Armed only while shares are larger than one. Where an op took longer than expected, shares
        go back to one: every item is announced, every slot used.
        """
        self.timer = None
        if self.halted:
            return
        self.take_back()
        self.look_for_progress()
        self.measure()
        self.dispatch()
        self.arm()
        self.advance()

    def arm(self) -> None:
        """See to it that a finished item waits no longer than a moment for others."""
        if self.share > 1 and self.active and self.timer is None and not self.halted:
            self.due = clock() + COMPANY_SECONDS
            self.timer = self.host.loop.call_later(COMPANY_SECONDS, self.on_timer)

    def disarm(self) -> None:
        """Let go of the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def take_pace(self, hop: BaseHop) -> None:
        """Take over what a hop has seen of the ops' pace."""
        self.results += hop.quick + hop.slow
        self.quick += hop.quick
        self.slow += hop.slow
        self.quick_busy += hop.quick_busy
        hop.quick = hop.slow = 0
        hop.quick_busy = 0.0

    def look_for_progress(self) -> None:
        """Use every slot where nothing was finished between two looks: a call takes long."""
        for hop in self.at_work:
            self.take_pace(hop)
        now = clock()
        if self.results != self.results_seen:
            self.results_seen = self.results
            self.pauses = 0
            self.progressed = now
        elif now - self.due < COMPANY_SECONDS / 2 or now - self.progressed > QUANTUM:
            # One look without progress may be a pause of the machine; one that comes late shows that
            # the loop was busy, which keeps threads waiting for the GIL.
            self.pauses += 1
        if self.pauses > 1:
            self.share = self.pace.least = 1
            self.room.set()

    def measure(self) -> None:
        """Fit the window and the share to the time that results take."""
        quick, slow = self.quick, self.slow
        if quick + slow < SAMPLE:
            return
        average = self.quick_busy / quick if quick else SHARE_SECONDS
        self.quick = self.slow = 0
        self.quick_busy = 0.0
        is_quick = quick > 0 and slow * 4 <= quick
        if self.pace.look(self.meters[-1].items_out, is_quick):
            self.room.set()
        self.share = 1
        if is_quick:
            share = int(SHARE_SECONDS / max(average, 1e-9))
            self.share = max(1, min(self.pace.window, share))
            if 2 * share >= self.pace.window:  # little work: nothing is lost by asking for most
                # But never for more than there is while every slot is taken by a call that blocks.
                most = self.pace.window - self.concurrency
                self.pace.least = max(1, min(most, self.pace.window * 3 // 4))
        if self.share == 1:
            self.pace.least = 1  # no timer would find out that ops have turned slow

    def stop(self) -> None:
        super().stop()
        self.disarm()
        self.inbox.clear()
        for hop in self.hops:
            if hop.future is not None and not hop.must_run:
                hop.future.cancel()

    def running(self) -> list[tuple[str, int, Item | None]]:
        return [(self.meters[hop.at].name, hop.thread, hop.item) for hop in self.hops if hop.thread]
