"""A simple model of the caching allocator: predicts every address and every statistic.

Slow and plain on purpose: lists and sums where the allocator has sets and counters. It implements
the rules of docs/memory.md independently of the code.
"""

from dataclasses import dataclass, field

from common import DEVICE_TYPE

KIB, MIB = 1024, 1024 * 1024
ROUNDING = 512 if DEVICE_TYPE == "cuda" else 128
SMALL_SIZE = MIB  # requests up to it come from the small pool
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
UNLIMITED = 1 << 62
POOLS = ("all", "small_pool", "large_pool")
QUANTITIES = (
    "allocation",
    "allocated_bytes",
    "requested_bytes",
    "active",
    "active_bytes",
    "segment",
    "reserved_bytes",
    "inactive_split",
    "inactive_split_bytes",
)


def round_up(size, multiple):
    return -(-size // multiple) * multiple


@dataclass
class Stat:
    """One statistic, as c10's."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def change(self, amount):
        self.current += amount
        if amount > 0:
            self.allocated += amount
        else:
            self.freed -= amount
        self.peak = max(self.peak, self.current)


@dataclass(eq=False)
class Block:
    """A part of a segment."""

    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    streams: set = field(default_factory=set)  # that record_stream named


@dataclass(eq=False)
class Segment:
    """The memory that the device returned, for one stream."""

    stream: object
    pool: str
    blocks: list  # in address order


class Model:
    """The allocator of one device, for some of its streams."""

    def __init__(self, max_split_size=UNLIMITED, max_non_split_rounding=20 * MIB, divisions=0):
        self.max_split_size = max_split_size
        self.max_non_split_rounding = max_non_split_rounding
        self.divisions = divisions
        self.segments = []
        self.awaiting = []  # freed blocks that another stream uses
        self.stats = {f"{q}.{p}": Stat() for q in QUANTITIES for p in POOLS}
        self.oversize = {"oversize_allocations": Stat(), "oversize_segments": Stat()}
        self.counters = {"num_device_alloc": 0, "num_device_free": 0, "num_sync_all_streams": 0}

    # --- Operations of a program

    def allocate(self, size, stream, address):
        """Returns a block for a request; checks that the allocator had to choose `address`."""
        self._finish_awaiting()
        rounded = self._rounded(size)
        pool = "small_pool" if rounded <= SMALL_SIZE else "large_pool"
        found = self._best_fit(rounded, stream, pool)
        if found is None:
            found = self._new_segment(rounded, stream, pool, address)
        segment, block = found
        self._split(segment, block, rounded)
        assert block.address == address, f"expected {block.address:#x}, got {address:#x}"
        block.requested, block.state = size, "active_allocated"
        self._change(pool, 1, allocation=1, allocated_bytes=block.size)
        self._change(pool, 1, active=1, active_bytes=block.size, requested_bytes=size)
        if block.size >= self.max_split_size:
            self.oversize["oversize_allocations"].change(1)

    def record_stream(self, address, stream):
        """Notes that another stream uses the block."""
        segment, block = self._find(address)
        if stream != segment.stream:
            block.streams.add(stream)

    def free(self, address):
        """Takes a block back; at the next allocation all streams have passed."""
        segment, block = self._find(address)
        pool = segment.pool
        self._change(pool, -1, allocation=1, allocated_bytes=block.size)
        if block.size >= self.max_split_size:
            self.oversize["oversize_allocations"].change(-1)
        block.state = "active_awaiting_free"
        self.awaiting.append((segment, block))
        if not block.streams:
            self._finish_awaiting([self.awaiting.pop()])

    def empty_cache(self):
        """Gives back every segment that nothing is left in."""
        self.counters["num_sync_all_streams"] += 1
        self._finish_awaiting()
        for segment in [s for s in self.segments if self._is_whole_and_free(s)]:
            self.segments.remove(segment)
            self._change_reserved(segment, -1)
            self.counters["num_device_free"] += 1

    # --- What must hold then

    def flat_stats(self):
        """The statistics, named as memory_stats() does."""
        flat = dict(self.counters)
        for name, stat in {**self.stats, **self.oversize}.items():
            flat.update({f"{name}.{key}": value for key, value in vars(stat).items()})
        return flat

    def layout(self):
        """Every segment's stream, pool and blocks (address, size, requested size, state)."""
        return sorted(
            (
                segment.stream,
                segment.pool,
                [(b.address, b.size, b.requested, b.state) for b in segment.blocks],
            )
            for segment in self.segments
        )

    # --- How

    def _rounded(self, size):
        if self.divisions > 1 and size > ROUNDING * self.divisions:
            power = 1 << (size.bit_length() - 1)
            return round_up(size, max(power // self.divisions, ROUNDING))
        return round_up(size, ROUNDING)

    def _best_fit(self, size, stream, pool):
        fits = [
            (block.size, block.address, segment, block)
            for segment in self.segments
            if segment.stream == stream and segment.pool == pool
            for block in segment.blocks
            if block.state == "inactive" and block.size >= size
        ]
        if not fits:
            return None
        _, _, segment, block = min(fits, key=lambda fit: fit[:2])
        if size < self.max_split_size <= block.size:
            return None
        if size >= self.max_split_size and block.size >= size + self.max_non_split_rounding:
            return None
        self._change_split(segment, block, -1)
        return segment, block

    def _new_segment(self, size, stream, pool, address):
        if pool == "small_pool":
            total = SMALL_SEGMENT
        else:
            total = LARGE_SEGMENT if size < 10 * MIB else round_up(size, 2 * MIB)
        segment = Segment(stream, pool, [Block(address, total)])
        self.segments.append(segment)
        self._change_reserved(segment, 1)
        self.counters["num_device_alloc"] += 1
        return segment, segment.blocks[0]

    def _split(self, segment, block, size):
        rest = block.size - size
        if segment.pool == "small_pool":
            is_worthwhile = rest >= ROUNDING
        else:
            is_worthwhile = size < self.max_split_size and rest > SMALL_SIZE
        if is_worthwhile:
            block.size = size
            after = Block(block.address + size, rest)
            segment.blocks.insert(segment.blocks.index(block) + 1, after)
            self._change_split(segment, after, 1)

    def _finish_awaiting(self, awaiting=None):
        awaiting, self.awaiting = (
            (self.awaiting, []) if awaiting is None else (awaiting, self.awaiting)
        )
        for segment, block in awaiting:
            self._change(
                segment.pool,
                -1,
                active=1,
                active_bytes=block.size,
                requested_bytes=block.requested,
            )
            block.requested = 0
            block.streams = set()
            place = segment.blocks.index(block)
            for neighbor in segment.blocks[max(place - 1, 0) : place + 2]:
                if neighbor.state == "inactive":
                    self._change_split(segment, neighbor, -1)
                    segment.blocks.remove(neighbor)
                    block.address = min(block.address, neighbor.address)
                    block.size += neighbor.size
            block.state = "inactive"
            self._change_split(segment, block, 1)

    def _find(self, address):
        for segment in self.segments:
            for block in segment.blocks:
                if block.address == address:
                    return segment, block
        raise AssertionError(f"no block at {address:#x}")

    def _is_whole_and_free(self, segment):
        return len(segment.blocks) == 1 and segment.blocks[0].state == "inactive"

    def _change(self, pool, sign, **amounts):
        for quantity, amount in amounts.items():
            for name in ("all", pool):
                self.stats[f"{quantity}.{name}"].change(sign * amount)

    def _change_reserved(self, segment, sign):
        size = sum(block.size for block in segment.blocks)
        self._change(segment.pool, sign, segment=1, reserved_bytes=size)
        if size >= self.max_split_size:
            self.oversize["oversize_segments"].change(sign)

    def _change_split(self, segment, block, sign):
        if len(segment.blocks) > 1:
            self._change(segment.pool, sign, inactive_split=1, inactive_split_bytes=block.size)
