"""Growing files of a remote run: what is sent, what that costs the storage, what readers see."""

import collections
import contextlib
import os
import subprocess

import pytest

from howdah import storage
from howdah.errors import StorageError
from howdah.models.runs.metrics_log import MetricsLog, read_metrics
from howdah.storage import backends, growing
from howdah.training.run import mirror as mirrors
from howdah.training.run.mirror import Mirror
from howdah.yarn.application import YarnApplication
from tests.support.memory_storage import MemoryStorage
from tests.support.waiting import wait_until

LINE = b'{"attempt": 1, "step": 10, "loss": 0.512, "lr": 4.1e-05, "epoch": 1.2, "time": 1.0}\n'


OPERATIONS = {
    "open_write": 3, "rename": 1, "remove": 1, "entry": 1, "list_dir": 1, "make_dirs": 1,
    "open_read": 1,
}  # fmt: skip
"""Of a NameNode, for each call; open_write: create, addBlock, complete."""


class Counting(MemoryStorage):
    """A storage that counts bytes and the operations that they are on a NameNode."""

    def __init__(self):
        super().__init__()
        self.bytes = collections.Counter()
        self.operations = 0
        self.away = False

    def put(self, path, fill, *, replace, size, mode=None):
        def counted(file):
            begun = file.tell()
            fill(file)
            self.bytes[path.partition(".parts/")[0]] += file.tell() - begun

        super().put(path, counted, replace=replace, size=size, mode=mode)


def _counted(name, count):
    real = getattr(MemoryStorage, name)

    def call(self, *args, **kwargs):
        if self.away:
            raise StorageError("away", where=args[0])
        self.operations += count
        return real(self, *args, **kwargs)

    return call


for _name, _count in OPERATIONS.items():
    setattr(Counting, _name, _counted(_name, _count))


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A remote run directory whose storage counts."""
    made = Counting()
    real = backends.backend_of
    monkeypatch.setattr(
        storage, "backend_of", lambda path: made if path.startswith("memory://") else real(path)
    )
    place = f"memory://{tmp_path.name}-mirror"
    yield place, made
    made.away = False
    storage.remove(place, recursive=True)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def grow(path, data):
    with open(path, "ab") as file:
        file.write(data)


def day(tmp_path, remote, clock, mirror, *, hours):
    """Hours of training at ten steps a second, a line every ten steps, simulated."""
    place, _ = remote
    files = ("metrics.jsonl", "log", "tensorboard/events")
    os.makedirs(tmp_path / "tensorboard")
    for name in files:
        grow(tmp_path / name, LINE)
    mirror.add(str(tmp_path / "metrics.jsonl"), place + "/metrics.jsonl")
    mirror.add(str(tmp_path / "log"), place + "/logs/rank.0")
    mirror.add(str(tmp_path / "tensorboard"), place + "/tensorboard", in_parts=False)
    for second in range(0, hours * 3600, 10):
        clock.now += 10
        for name in files:
            grow(tmp_path / name, LINE * 10)
        mirror.round()
        if second % 1800 == 0:  # readers are behind by a round at most, whatever the hour
            read = growing.read(place + "/metrics.jsonl")
            assert read[1] == len(read[0]) == os.path.getsize(tmp_path / "metrics.jsonl")
            mirror.publish()  # as a checkpoint does
    return files


@pytest.mark.full  # test_the_ranks_of_a_large_world_ask_little counts operations in every run
def test_what_a_day_sends_is_three_times_the_files_at_most(tmp_path, remote):
    place, counting = remote
    clock = Clock()
    mirror = Mirror(say=print, clock=clock, threaded=False)
    day(tmp_path, remote, clock, mirror, hours=24)
    assert counting.operations / 86400 <= 1.2
    mirror.close()
    sent = {"/metrics.jsonl": "metrics.jsonl", "/logs/rank.0": "log",
            "/tensorboard/events": "tensorboard/events"}  # fmt: skip
    for name, local in sent.items():
        whole = (tmp_path / local).read_bytes()
        assert len(whole) > 7_000_000
        times = counting.bytes[place + name] / len(whole)
        print(f"{name}: {len(whole):,} bytes, sent {times:.2f} times")
        assert times <= 3
        # In the end each is one whole file, as if it had never been published otherwise.
        assert storage.read_bytes(place + name) == whole
    entries = [entry.name for entry in storage.list_dir(place)]
    assert entries == ["logs", "metrics.jsonl", "tensorboard"]
    assert [entry.name for entry in storage.list_dir(place + "/logs")] == ["rank.0"]


def test_the_ranks_of_a_large_world_ask_little_of_a_namenode(tmp_path, remote):
    place, counting = remote
    clock, size = Clock(), 512
    path = tmp_path / "log"
    grow(path, LINE)
    ranks = []
    for rank in range(size):
        one = Mirror(say=print, clock=clock, threaded=False)
        one.belongs_to(rank, size)
        one.add(str(path), f"{place}/logs/rank.{rank}")
        ranks.append(one)
    ranks[0].add(str(path), place + "/metrics.jsonl")
    for _ in range(6):  # an hour, by ten minutes
        before = counting.operations
        for _ in range(60):
            clock.now += 10
            grow(path, LINE * 10)
            for one in ranks:
                one.round()
        assert counting.operations - before <= 5 * 600
    logs = storage.list_dir(place + "/logs")
    assert len([entry for entry in logs if not entry.is_dir]) == size


def test_a_rank_that_becomes_the_first_publishes_as_the_first(tmp_path, remote):
    place, _ = remote
    clock = Clock()
    mirror = Mirror(say=print, clock=clock, threaded=False)
    mirror.belongs_to(3, 512)
    grow(tmp_path / "log", b"one\n")
    mirror.add(str(tmp_path / "log"), place + "/log")
    mirror.round()
    assert mirror.pause == pytest.approx(768)
    mirror.belongs_to(0, 511)
    mirror.round()
    assert growing.read(place + "/log")[0] == b"one\n"


def test_a_reader_that_follows_sees_each_byte_once_while_parts_are_replaced(
    tmp_path, remote, monkeypatch
):
    monkeypatch.setattr(mirrors, "_SMALL_PARTS", 4)
    place, _ = remote
    clock = Clock()
    mirror = Mirror(say=print, clock=clock, threaded=False)
    path = tmp_path / "log"
    grow(path, b"first line\n")
    mirror.add(str(path), place + "/log")
    seen, at = b"", 0
    for number in range(50):
        clock.now += 10
        grow(path, f"line {number} and half of ".encode())
        mirror.round()
        data, at = growing.read(place + "/log", at)
        seen += data
        assert seen == path.read_bytes()
        assert growing.read(place + "/log")[0] == seen
    assert len(storage.list_dir(place + "/log.parts")) <= 50 // 4 + 4
    mirror.close()
    assert growing.read(place + "/log", at) == (b"", at)


def test_a_part_that_is_replaced_between_listing_and_reading_is_looked_for_again(
    remote, monkeypatch
):
    place, _ = remote
    storage.write_whole(place + "/log", b"ab")
    storage.write_whole(growing.part_path(place + "/log", 2), b"cd")
    storage.write_whole(growing.part_path(place + "/log", 4), b"ef")
    storage.write_whole(growing.part_path(place + "/log", 7), b"behind a gap")
    real = storage.open_read

    def replaced(path):
        monkeypatch.setattr(storage, "open_read", real)
        storage.write_whole(growing.part_path(place + "/log", 2), b"cdefg")
        storage.remove(growing.part_path(place + "/log", 4))
        return real(growing.part_path(place + "/log", 4))

    monkeypatch.setattr(storage, "open_read", replaced)
    assert growing.read(place + "/log") == (b"abcdefgbehind a gap", 19)
    assert growing.read(place + "/log", 5) == (b"fgbehind a gap", 19)
    assert growing.read(place + "/log", 100) == (b"abcdefgbehind a gap", 19)  # begun anew
    assert growing.read(place + "/none") is None


def test_a_later_attempt_goes_on_from_parts_and_replaces_them(tmp_path, remote):
    place, _ = remote
    published = place + "/metrics.jsonl"
    clock = Clock()
    for attempt in (1, 2):
        local = tmp_path / f"{attempt}.jsonl"
        log = MetricsLog(str(local), published, attempt)
        assert log.last == ((-1, False) if attempt == 1 else (2, False))
        mirror = Mirror(say=print, clock=clock, threaded=False)
        mirror.add(str(local), published)
        for step in (3 * attempt - 2, 3 * attempt - 1):
            clock.now += 10
            log.write(step=step)
            mirror.round()
        if attempt == 1:  # killed in the middle of a line
            grow(local, b'{"attempt": 1, "st')
            clock.now += 10
            mirror.round()
    assert [line["step"] for line in read_metrics(place)] == [1, 2, 4, 5]
    mirror.close()
    assert [line["step"] for line in read_metrics(place)] == [1, 2, 4, 5]
    assert [entry.name for entry in storage.list_dir(place)] == ["metrics.jsonl"]


def test_howdah_logs_reads_a_rank_s_log_of_parts(remote):
    place, _ = remote
    path = place + "/logs/rank.0"
    storage.write_whole(path, b"one\ntw")
    storage.write_whole(growing.part_path(path, 6), b"o\nthree\n")

    class Manager:
        def application(self, name):
            return {"state": "RUNNING"}

    out = []
    job = YarnApplication(Manager(), "application_1", place)
    job.rank_log(0, follow=False, out=out.append)
    assert out[:3] == ["one", "two", "three"]


def test_the_thread_publishes_by_itself_and_outlives_every_error(tmp_path, remote):
    place, counting = remote
    folder = tmp_path / "d"
    folder.mkdir()
    lines = []
    mirror = Mirror(seconds=0.01, say=lines.append)
    mirror.add(str(folder), place + "/d")
    grow(folder / "a", b"one")
    wait_until(lambda: storage.exists(place + "/d/a"))
    # A file that cannot be read, and one that goes while it is looked at.
    os.symlink(str(tmp_path / "nowhere"), folder / "gone")
    os.mkdir(folder / "b")
    counting.away = True
    grow(folder / "a", b" two")
    wait_until(lambda: lines)
    counting.away = False
    wait_until(lambda: growing.read(place + "/d/a")[0] == b"one two")
    grow(folder / "a", b" three")
    mirror.close()
    assert storage.read_bytes(place + "/d/a") == b"one two three"
    assert len(lines) == 1


def test_a_new_world_finds_what_was_logged_before_it(tmp_path, remote):
    """Ranks that join then know nothing of those steps: lost with rank 0, their lines were gone."""
    place, _ = remote
    mirror = Mirror(seconds=3600.0, say=print)
    mirror.belongs_to(0, 2)
    path = tmp_path / "metrics.jsonl"
    grow(path, b"step 1\n")
    mirror.add(str(path), place + "/metrics.jsonl")
    mirror.belongs_to(0, 1)  # a rank was lost
    wait_until(lambda: growing.read(place + "/metrics.jsonl") is not None)
    grow(path, b"step 2\n")
    mirror.belongs_to(0, 2)  # another one has joined
    wait_until(lambda: growing.read(place + "/metrics.jsonl")[0] == b"step 1\nstep 2\n")
    mirror.close()


def test_an_end_that_cannot_be_published_is_an_error(tmp_path, remote):
    place, counting = remote
    mirror = Mirror(say=print, threaded=False)
    grow(tmp_path / "a", b"x")
    mirror.add(str(tmp_path / "a"), place + "/a")
    counting.away = True
    with pytest.raises(StorageError):
        mirror.close()


@pytest.mark.parametrize(
    "damaged",
    ["5", "[]", "null", "NaN", '{"step": 1}', '{"attempt": 1}', '{"attempt": 1, "step": "x"}',
     '{"attempt": 1, "step": 3, "loss": NaN}', '{"attempt": 1, "step": 3, "loss": "x"}',
     '{"attempt": 1, "step": 3, "split": "test", "metrics": 5}', "gar\xffbage", "["],
)  # fmt: skip
def test_a_line_of_another_shape_counts_as_a_damaged_one(tmp_path, damaged):
    """Wherever it stands: the other lines count, and a run that goes on knows where it was."""
    path = str(tmp_path / "metrics.jsonl")
    good = ['{"attempt": 1, "step": 1, "loss": 2.0}', '{"attempt": 1, "step": 2, "loss": 1.0}']
    text = "\n".join([damaged, good[0], damaged, good[1], damaged]) + "\n"
    storage.write_whole(path, text.encode("latin-1"))
    assert [line["step"] for line in read_metrics(str(tmp_path))] == [1, 2]
    log = MetricsLog(path, path, 2)
    assert log.last == (2, False)
    log.write(step=3, loss=0.5)
    log.close()
    assert [line["step"] for line in read_metrics(str(tmp_path))] == [1, 2, 3]
    assert storage.read_bytes(path).startswith(text.encode("latin-1"))  # nothing is lost


def test_a_directory_named_metrics_jsonl_is_a_typed_error(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    storage.make_dirs(path)
    for act in (lambda: MetricsLog(path, path, 1), lambda: read_metrics(str(tmp_path))):
        with pytest.raises(StorageError, match="it is a directory") as caught:
            act()
        assert caught.value.where == path and caught.value.remedy


def test_lines_for_which_the_disk_has_no_room_are_written_once_there_is(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("no small file system can be mounted here: that takes root")
    path = str(tmp_path / "metrics.jsonl")
    try:
        log = MetricsLog(path, path, 1)
        for step in range(200):
            log.write(step=step, loss=1.0)
            if step == 0:
                with contextlib.suppress(OSError), open(tmp_path / "full", "wb") as file:
                    while file.write(b"x" * 1024):
                        file.flush()
            if step == 100:
                assert len(read_metrics(str(tmp_path))) < 100
                os.unlink(tmp_path / "full")
        log.close()
        assert [line["step"] for line in read_metrics(str(tmp_path))] == [*range(200)]
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
