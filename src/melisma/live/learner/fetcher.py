"""The thread of a learner that fetches shards, one after another over one downlink.

Shards of the current assignment come first, in order; each is given to the stream of batches that
training consumes. When there is no assignment, shards of the next cycle are fetched ahead.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import nan

from melisma.cycle.learner import MIN_SHARD_FRACTION
from melisma.errors import MelismaError
from melisma.learning.batches import BatchStream
from melisma.learning.data.datasets import Split
from melisma.learning.stream_state import StreamState
from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.protocol import ShardRef

Source = ShardRef | Split  # to be fetched, or on the device


@dataclass(eq=False)
class ShardFeed:
    """The shards of one assignment, on their way to its stream of batches.

    With `hold_back`, shards are given to the stream only when all first ones have been fetched.
    `fetch_s` are the seconds spent on `fetched` shards, parts of shards included.
    """

    stream: BatchStream
    time_is_up: Callable[[], bool]
    hold_back: bool
    waiting: deque[Source] = field(default_factory=deque)
    works: list[list[Source]] = field(default_factory=list)  # of each work item of the stream
    all_fetched: threading.Event = field(default_factory=threading.Event)
    all_loaded: threading.Event = field(default_factory=threading.Event)
    ended: bool = False
    error: Exception | None = None
    shipped: int = 0  # shards fetched, for this assignment or ahead of it
    fetch_s: float = 0.0
    fetched: float = 0.0
    in_transit: "Transit | None" = None  # not counted yet

    @property
    def ship_s(self) -> float | None:
        """The seconds to fetch a shard in this cycle, if one was fetched."""
        return self.fetch_s / self.fetched if self.fetched >= 1 else None

    def observed_ship_s(self) -> float:
        """Return the seconds to fetch a shard, also if only a part was fetched; NaN if none."""
        return self.fetch_s / max(self.fetched, MIN_SHARD_FRACTION) if self.fetch_s else nan

    def check(self) -> None:
        """Raise the error that ended the fetching, if there was one."""
        if self.error is not None:
            raise self.error


@dataclass(frozen=True)
class Transit:
    """A shard that is being fetched: the fraction in the cache when that began, and the time."""

    shard: ShardRef
    fraction: float
    began_at: float


class Fetcher:
    """Fetches the shards of one feed at a time; between feeds, fetches ahead.

    An unexpected error while fetching ahead is passed to `on_error`, in the thread that fetches.
    """

    def __init__(
        self, downloader: Downloader, device: Device, on_error: Callable[[Exception], None]
    ) -> None:
        self._downloader, self._device, self._on_error = downloader, device, on_error
        self._changed = threading.Condition()
        self._feed: ShardFeed | None = None
        self._ahead: list[ShardRef] = []
        # Hashes of shards that were fetched, but are not part of an update yet.
        self._unreported: set[str] = set()
        self._needed: list[str] = []
        self.downlink = threading.Lock()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="fetch", daemon=True).start()

    def begin(self, feed: ShardFeed, sources: Sequence[Source], passes: int) -> None:
        """Fetch the first shards of a feed, for passes over them; stop fetching ahead."""
        self.resume(feed, [], [])
        self.add(feed, sources, passes)

    def resume(
        self, feed: ShardFeed, works: Sequence[Sequence[Source]], missing: Sequence[Source]
    ) -> None:
        """Fetch the shards that a restored stream has not, of all its work items.

        Stop fetching ahead.
        """
        with self._changed:
            feed.works = [list(sources) for sources in works]
            feed.waiting.extend(missing)
            sources = [source for work in works for source in work]
            self._needed = [item.sha256 for item in sources if isinstance(item, ShardRef)]
            self._feed, self._ahead = feed, []
            self._changed.notify()

    def snapshot(self, feed: ShardFeed) -> tuple[list[list[Source]], StreamState]:
        """Return the shards of each work item of a feed, and the state of its stream."""
        with self._changed:
            return [list(work) for work in feed.works], feed.stream.state()

    def add(self, feed: ShardFeed, sources: Sequence[Source], passes: int) -> None:
        """Announce a work item to the stream of a feed, and fetch its shards after those waiting.

        Both are one step, so that `release` finds the waiting shards and the work items aligned.
        """
        with self._changed:
            feed.stream.add_work(passes, [_sample_count(source) for source in sources])
            feed.works.append(list(sources))
            feed.waiting.extend(sources)
            self._needed += [item.sha256 for item in sources if isinstance(item, ShardRef)]
            self._changed.notify()

    def queue_s(self, feed: ShardFeed, ship_s: float) -> float:
        """Return the seconds until all shards of a feed are there, if each takes `ship_s`."""
        with self._changed:
            transit = feed.in_transit
            missing = [s for s in feed.waiting if isinstance(s, ShardRef)]
            missing = [shard for shard in missing if not self._downloader.has(shard)]
        rest_s = 0.0
        if transit is not None:
            rest_s = transit.began_at + (1.0 - transit.fraction) * ship_s - time.monotonic()
        return max(rest_s, 0.0) + len(missing) * ship_s

    def release(self, feed: ShardFeed, count: int) -> list[int]:
        """Take the last `count` shards from the feed and its stream; return their numbers."""
        with self._changed:
            count = min(count, len(feed.waiting))
            released = [feed.waiting.pop() for _ in range(count)]
            feed.stream.withdraw_shards(count)
            for _ in range(count):
                next(work for work in reversed(feed.works) if work).pop()
        return [item.number for item in reversed(released) if isinstance(item, ShardRef)]

    def end(self, feed: ShardFeed) -> None:
        """Fetch no more shards of a feed; count the part of a shard that has arrived."""
        with self._changed:
            self._count_transit(feed)
            feed.waiting.clear()
            feed.ended = True
            if self._feed is feed:
                self._feed = None
            self._changed.notify()

    def fetch_ahead(self, shards: Sequence[ShardRef]) -> None:
        """Fetch shards until there is something else to do; with none, stop fetching ahead."""
        with self._changed:
            self._ahead = list(shards)
            self._changed.notify()

    def mark_reported(self, shards: Sequence[ShardRef]) -> None:
        """Record that the orchestrator knows that this device holds these shards."""
        self._unreported.difference_update(shard.sha256 for shard in shards)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._ahead if self._feed is None else self._feed.waiting):
                    self._changed.wait()
                feed = self._feed
            if feed is None:
                self._fetch_ahead()
                continue
            try:
                self._serve(feed)
            except Exception as error:  # noqa: BLE001 - raised again in the thread that trains
                feed.error = error
                self.end(feed)
            finally:
                feed.all_fetched.set()
                feed.all_loaded.set()

    def _serve(self, feed: ShardFeed) -> None:
        """Fetch and load the waiting shards of a feed, as long as there is time."""
        held_back: list[Source] = []
        # An empty shard on the device is false, too.
        while (source := self._next(feed)) is not None:
            if not self._fetch(feed, source):
                self.end(feed)
                return
            if feed.hold_back:
                held_back.append(source)
            else:
                feed.stream.add_shard(self._read(source))
        feed.hold_back = False
        feed.all_fetched.set()
        for source in held_back:
            feed.stream.add_shard(self._read(source))

    def _next(self, feed: ShardFeed) -> Source | None:
        with self._changed:
            return feed.waiting.popleft() if feed.waiting else None

    def _fetch(self, feed: ShardFeed, source: Source) -> bool:
        """Fetch a shard if it is not on the device; return whether there was time for it."""
        if not isinstance(source, ShardRef):
            return True
        if self._downloader.has(source):
            feed.shipped += source.sha256 in self._unreported
            return True
        feed.in_transit = Transit(
            source, self._downloader.fraction_in_cache(source), time.monotonic()
        )
        with self.downlink:
            self._downloader.fetch_shard(
                source, self._device, lambda: feed.ended or feed.time_is_up(), self._needed
            )
        with self._changed:
            self._count_transit(feed)
        if not self._downloader.has(source):
            return False
        self._unreported.add(source.sha256)
        feed.shipped += 1
        return not (feed.hold_back and feed.time_is_up())

    def _count_transit(self, feed: ShardFeed) -> None:
        """Count the seconds and the fraction of the shard in transit, once."""
        if (transit := feed.in_transit) is not None:
            feed.in_transit = None
            feed.fetch_s += time.monotonic() - transit.began_at
            feed.fetched += self._downloader.fraction_in_cache(transit.shard) - transit.fraction

    def _read(self, source: Source) -> Split:
        if isinstance(source, ShardRef):
            (split,) = self._downloader.read_shards([source])
            return split
        return source

    def _fetch_ahead(self) -> None:
        """Fetch the first of the shards to be fetched ahead, unless another instruction comes."""
        with self._changed:
            wanted = self._ahead
            shard = wanted.pop(0) if wanted else None
        if shard is None or self._downloader.has(shard):
            return
        needed = [item.sha256 for item in wanted]
        try:
            with self.downlink:
                self._downloader.fetch_shard(
                    shard, self._device, lambda: self._ahead is not wanted, needed
                )
        except MelismaError:
            # The run has ended, or the shard will be missing when it is needed: reported then.
            self.fetch_ahead(())
            return
        except Exception as error:  # noqa: BLE001 - raised again in the thread that trains
            self.fetch_ahead(())
            self._on_error(error)
            return
        if self._downloader.has(shard):
            self._unreported.add(shard.sha256)


def _sample_count(source: Source) -> int:
    return len(source) if isinstance(source, Split) else source.samples
