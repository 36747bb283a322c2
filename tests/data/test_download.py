"""Downloads from a real server on this machine, which can be made to misbehave."""

import gzip
import hashlib
import re
import resource
import socket
import subprocess
import sys
import tarfile
from contextlib import contextmanager

import pytest

from helpers.loopback import FILES, NOISE, serving, tarred, zipped
from safeset import ArgumentError
from safeset.data import download
from safeset.data.download import get
from safeset.data.source import Archive
from safeset.data.sources import ARCHIVES
from safeset.errors import DataNotFoundError, SafesetError


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with serving() as state:
        yield state


PACKERS = pytest.mark.parametrize(("file", "pack"), [("set.zip", zipped), ("set.tar.gz", tarred)])


def whole(path):
    found = {f"set/{file.relative_to(path)}": file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return found == FILES


def names(folder):
    """What lies in a folder, but for the lock."""
    return sorted(file.name for file in folder.iterdir() if file.name != ".set.lock")


@PACKERS
def test_an_archive_is_downloaded_and_unpacked(tmp_path, server, file, pack):
    archives = server.archive(pack(), file)
    calls = []
    path = get("set", folder=tmp_path / "new" / "data", progress=lambda *call: calls.append(call), archives=archives)
    assert path == tmp_path / "new" / "data" / "set"
    assert whole(path)
    assert names(path.parent) == ["set"]
    assert server.asked == [None]
    size = len(server.body)
    assert (calls[0], calls[-1], calls) == ((0, size), (size, size), sorted(calls))


def test_data_goes_where_it_is_looked_for(tmp_path, server, monkeypatch):
    monkeypatch.setenv("SAFESET_DATA", str(tmp_path / "here"))
    assert get("set", archives=server.archive(zipped())) == tmp_path / "here" / "set"


def test_what_is_there_is_not_fetched_again(tmp_path, server):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "own.txt").write_text("mine")
    assert get("set", folder=tmp_path, archives=server.archive(zipped())) == tmp_path / "set"
    assert (names(tmp_path / "set"), server.asked) == (["own.txt"], [])
    assert [file.name for file in tmp_path.iterdir()] == ["set"]  # not even a lock: it may be a disk to read from only


def test_only_the_rest_of_a_part_is_asked_for(tmp_path, server):
    archives = server.archive(zipped())
    (tmp_path / "set.zip.part").write_bytes(server.body[:50_000])
    calls = []
    assert whole(get("set", folder=tmp_path, progress=lambda *call: calls.append(call), archives=archives))
    assert server.asked == ["bytes=50000-"]
    assert (calls[0], calls[-1]) == ((50_000, len(server.body)), (len(server.body), len(server.body)))


@pytest.mark.parametrize("status", [200, 416])
def test_a_complete_part_is_used_as_it_is(tmp_path, server, status):
    archives = server.archive(zipped())
    server.status = status
    (tmp_path / "set.zip.part").write_bytes(server.body)
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert server.asked == []


@pytest.mark.parametrize("length", [True, False])
def test_dropped_connections_are_taken_up_where_they_ended(tmp_path, server, length):
    archives = server.archive(zipped())
    server.drops, server.length = [30_000, 0, -1, 40_000], length
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert server.asked == [None, "bytes=30000-", "bytes=30000-", "bytes=30000-", "bytes=70000-"]


def test_connections_that_are_reset_are_taken_up(tmp_path, server):
    archives = server.archive(zipped())
    server.drops, server.reset = [30_000, -1, 40_000], True
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert len(server.asked) == 4


def test_a_connection_that_stalls_is_a_dropped_one(tmp_path, server, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.5)
    archives = server.archive(zipped())
    server.stalls = 1
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert server.asked == [None, f"bytes={len(server.body) // 2}-"]


def test_a_server_that_keeps_dropping_is_given_up_and_what_came_is_kept(tmp_path, server):
    archives = server.archive(zipped())
    server.drops = [1000] * 5
    with pytest.raises(DataNotFoundError, match=r"dropped 5 times \(after 5,000 of .* bytes\).*kept.*unpack it in"):
        get("set", folder=tmp_path, archives=archives)
    assert (tmp_path / "set.zip.part").read_bytes() == server.body[:5000]
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert server.asked[-1] == "bytes=5000-"


@pytest.mark.parametrize(
    ("ranges", "asked"),
    [("ignored", ["bytes=50000-"]), ("refused", ["bytes=50000-", None])],
)
def test_a_server_without_ranges_starts_from_zero(tmp_path, server, ranges, asked):
    archives = server.archive(zipped())
    server.ranges = ranges
    (tmp_path / "set.zip.part").write_bytes(b"?" * 50_000)  # what is kept of it would be noticed
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert server.asked == asked


def test_an_answer_to_another_range_is_not_used(tmp_path, server):
    archives = server.archive(zipped())
    server.ranges = "shifted"
    (tmp_path / "set.zip.part").write_bytes(server.body[:50_000])
    with pytest.raises(DataNotFoundError, match="did not continue from byte 50,000"):
        get("set", folder=tmp_path, archives=archives)
    assert (tmp_path / "set.zip.part").read_bytes() == server.body[:50_000]


def test_a_wrong_checksum_deletes_what_came(tmp_path, server):
    archives = server.archive(zipped())
    good = server.body
    server.body = good[:60_000] + bytes([good[60_000] ^ 1]) + good[60_001:]
    got = hashlib.md5(server.body).hexdigest()
    with pytest.raises(SafesetError, match=rf"Expected .*{archives['set'].md5}.*, but got {got}\. .*try again"):
        get("set", folder=tmp_path, archives=archives)
    assert names(tmp_path) == []
    server.body = good
    assert whole(get("set", folder=tmp_path, archives=archives))


def test_a_part_of_another_file_is_noticed(tmp_path, server):
    archives = server.archive(zipped())
    (tmp_path / "set.zip.part").write_bytes(b"?" * 50_000)
    with pytest.raises(SafesetError, match=r"but got [0-9a-f]{32}"):
        get("set", folder=tmp_path, archives=archives)
    assert whole(get("set", folder=tmp_path, archives=archives))


@pytest.mark.parametrize("ranges", ["kept", "ignored"])
def test_a_file_of_another_size_is_refused_before_it_is_read(tmp_path, server, ranges):
    archives = server.archive(zipped())
    good, server.body = server.body, b"<html>Please log in.</html>" * 4000
    server.ranges = ranges
    (tmp_path / "set.zip.part").write_bytes(good[:50_000])
    with pytest.raises(SafesetError, match=rf"Expected {len(good):,} bytes .*, but got a response of 108,000 bytes"):
        get("set", folder=tmp_path, archives=archives)
    assert (tmp_path / "set.zip.part").read_bytes() == good[:50_000]


@pytest.mark.parametrize(("status", "reason"), [(404, "404 Not Found"), (503, "503 Service Unavailable")])
def test_a_file_that_cannot_be_had_is_named(tmp_path, server, status, reason):
    archives = server.archive(zipped())
    server.status = status
    with pytest.raises(DataNotFoundError, match=rf"{re.escape(archives['set'].url)}.*{reason}.*{tmp_path / 'set'}"):
        get("set", folder=tmp_path, archives=archives)
    assert len(server.asked) == 1


def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_offline_the_error_says_what_to_do_by_hand(tmp_path):
    url = f"http://127.0.0.1:{closed_port()}/set.zip"
    archives = {"set": Archive(url, "0123abcd" * 4, 10, "set", "")}
    with pytest.raises(DataNotFoundError) as caught:
        get("set", folder=tmp_path, archives=archives)
    for part in (url, "0123abcd" * 4, "could not be reached", "refused", f"unpack it in {tmp_path},", "/set is there"):
        assert part in str(caught.value)
    assert names(tmp_path) == []


def test_a_server_that_does_not_answer_counts_as_offline(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/set.zip"
        with pytest.raises(DataNotFoundError, match=r"could not be reached \(timed out\)"):
            get("set", folder=tmp_path, archives={"set": Archive(url, "0" * 32, 10, "set", "")})


@PACKERS
@pytest.mark.parametrize("name", ["../out.txt", "set/../../out.txt", "{top}/out.txt", "set\\..\\..\\x", "C:x"])
def test_members_outside_the_folder_are_refused(tmp_path, server, file, pack, name):
    name = name.format(top=tmp_path)
    archives = server.archive(pack(FILES | {name: b"harm"}), file)
    with pytest.raises(SafesetError, match=rf"unpack to the folder set, but got {re.escape(repr(name))} .*outside"):
        get("set", folder=tmp_path / "data", archives=archives)
    assert (names(tmp_path), names(tmp_path / "data")) == (["data"], [])


@pytest.mark.parametrize("aim", ["/etc/passwd", "../..", "one.bin"])
@pytest.mark.parametrize(
    ("file", "pack"),
    [
        ("set.zip", zipped),
        ("set.tar.gz", tarred),
        ("set.tar.gz", lambda files, links: tarred(files, links, tarfile.LNKTYPE)),
    ],
)
def test_links_are_refused(tmp_path, server, file, pack, aim):
    archives = server.archive(pack(FILES, [("set/link", aim)]), file)
    with pytest.raises(SafesetError, match="'set/link' in it, no plain file"):
        get("set", folder=tmp_path / "data", archives=archives)
    assert (names(tmp_path), names(tmp_path / "data")) == (["data"], [])


def test_devices_are_refused(tmp_path, server):
    archives = server.archive(tarred(FILES, [("set/pipe", "")], tarfile.FIFOTYPE), "set.tar.gz")
    with pytest.raises(SafesetError, match="'set/pipe' in it, no plain file"):
        get("set", folder=tmp_path, archives=archives)
    assert names(tmp_path) == []


@PACKERS
def test_an_archive_without_its_folder_is_refused(tmp_path, server, file, pack):
    archives = server.archive(pack({"other/one.txt": b"1", "set.txt": b"2"}), file)
    with pytest.raises(SafesetError, match="the folder set, but got an archive without that folder"):
        get("set", folder=tmp_path, archives=archives)
    assert names(tmp_path) == []


def changed(body, place, value):
    return body[:place] + bytes([value]) + body[place:][1:]


def endless():
    """A tar without its end, so that the checksum of the gzip around it is read; and that is wrong."""
    packed = gzip.compress(gzip.decompress(tarred({"set/one.bin": NOISE}))[: 512 + len(NOISE)])
    return changed(packed, -8, packed[-8] ^ 1)


@pytest.mark.parametrize(
    ("file", "body"),
    [
        ("set.zip", zipped()[:100_000]),
        ("set.zip", changed(zipped(), 60_000, 0)),
        ("set.zip", changed(zipped(), 30 + len("set/one.bin"), 0b111)),
        ("set.zip", changed(zipped(), zipped().index(b"PK\1\2") + 8, 1)),
        ("set.tar.gz", tarred({"set/first.txt": b"1"} | FILES)[:100_000]),
        ("set.tar.gz", endless()),
        ("set.tar.gz", b"not an archive"),
        ("set.zip", b"not an archive"),
    ],
    ids=["zip cut", "zip checksum", "zip stream", "zip encrypted", "tar cut", "gzip checksum", "no tar", "no zip"],
)
def test_a_broken_archive_is_never_half_unpacked(tmp_path, server, file, body):
    with pytest.raises(SafesetError, match="Nothing was unpacked"):
        get("set", folder=tmp_path, archives=server.archive(body, file))
    assert names(tmp_path) == []


def test_the_folder_appears_at_once(tmp_path, server, monkeypatch):
    extract = download._extract
    seen = []

    def watched(*arguments):
        extract(*arguments)
        seen.append((names(tmp_path), (tmp_path / ".set.unpacking" / "set").stat().st_ino))

    monkeypatch.setattr(download, "_extract", watched)
    (tmp_path / ".set.unpacking").mkdir()
    (tmp_path / ".set.unpacking" / "left.txt").write_text("by a process that was killed")
    assert whole(get("set", folder=tmp_path, archives=server.archive(zipped())))
    assert seen == [([".set.unpacking", "set.zip.part"], (tmp_path / "set").stat().st_ino)]  # renamed, not copied
    assert names(tmp_path) == ["set"]


@contextmanager
def small_disk(size):
    """No file may grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_while_downloading_keeps_what_came(tmp_path, server):
    archives = server.archive(zipped())
    with small_disk(100_000), pytest.raises(OSError, match="File too large"):
        get("set", folder=tmp_path, archives=archives)
    assert (tmp_path / "set.zip.part").read_bytes() == server.body[:100_000]
    assert (names(tmp_path), server.asked) == (["set.zip.part"], [None])
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert server.asked == [None, "bytes=100000-"]


@PACKERS
def test_a_full_disk_while_unpacking_keeps_the_archive(tmp_path, server, file, pack):
    archives = server.archive(pack(), file)
    with small_disk(300_000), pytest.raises(OSError, match="File too large"):
        get("set", folder=tmp_path, archives=archives)
    assert names(tmp_path) == [f"{file}.part"]
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert server.asked == [None]


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(tmp_path, server):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        get("set", folder=tmp_path / "file" / "data", archives=server.archive(zipped()))
    assert server.asked == []


HOLD = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, 2); print('held', flush=True); input()"


def test_a_second_process_is_refused(tmp_path, server):
    archives = server.archive(zipped())
    command = [sys.executable, "-c", HOLD, str(tmp_path / ".set.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SafesetError, match=rf"Another process is downloading set into {tmp_path}"):
            get("set", folder=tmp_path, archives=archives)
        assert (names(tmp_path), server.asked) == ([], [])
        other.kill()
    assert whole(get("set", folder=tmp_path, archives=archives))


def test_the_lock_is_held_from_the_first_byte_to_the_end(tmp_path, server, monkeypatch):
    archives = server.archive(zipped())
    told = []

    def again(*call):
        with pytest.raises(SafesetError, match="Another process is downloading"):
            get("set", folder=tmp_path, archives=archives)
        told.append(call)

    extract = download._extract
    monkeypatch.setattr(download, "_extract", lambda *arguments: (again("unpacking"), extract(*arguments)))
    assert whole(get("set", folder=tmp_path, progress=again, archives=archives))
    assert (told[0], told[-1], server.asked) == ((0, len(server.body)), ("unpacking",), [None])


def test_what_another_process_finished_meanwhile_is_used(tmp_path, server, monkeypatch):
    locked = download._lock

    def late(*arguments):
        (tmp_path / "set").mkdir()
        return locked(*arguments)

    monkeypatch.setattr(download, "_lock", late)
    assert get("set", folder=tmp_path, archives=server.archive(zipped())) == tmp_path / "set"
    assert server.asked == []


def test_an_interrupted_download_goes_on(tmp_path, server):
    archives = server.archive(zipped())
    server.drops = [30_000]

    def stop(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get("set", folder=tmp_path, progress=stop, archives=archives)
    came = (tmp_path / "set.zip.part").read_bytes()
    assert came == server.body[: len(came) or 1]
    assert whole(get("set", folder=tmp_path, archives=archives))
    assert server.asked == [None, f"bytes={len(came)}-"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("eurosta", ArgumentError, r"\(eurosat, cifar100, tiny-imagenet\), but got 'eurosta'\. .*mean 'eurosat'\?"),
        ("acas", ArgumentError, r"but got 'acas'\. Did you mean 'acasxu'\?"),
        ("../x", ArgumentError, r"but got '\.\./x'\.$"),
        ("digits", ArgumentError, "'digits'. It comes with safeset: there is nothing to download"),
        ("blobs2d", ArgumentError, "'blobs2d'. It comes with safeset: there is nothing to download"),
        ("acasxu", DataNotFoundError, r"put the 45 \.nnet files of Reluplex \(github.* nnet\) into .*/none/acasxu"),
    ],
)
def test_names_without_an_archive(tmp_path, name, error, message):
    with pytest.raises(error, match=message):
        get(name, folder=tmp_path / "none")
    assert names(tmp_path) == []


def test_the_official_archives_are_written_down_as_published():
    assert {name: (archive.file, archive.folder) for name, archive in ARCHIVES.items()} == {
        "eurosat": ("EuroSAT_RGB.zip", "EuroSAT_RGB"),
        "cifar100": ("cifar-100-binary.tar.gz", "cifar-100-binary"),
        "tiny-imagenet": ("tiny-imagenet-200.zip", "tiny-imagenet-200"),
    }
    for archive in ARCHIVES.values():
        assert re.fullmatch("[0-9a-f]{32}", archive.md5)
        assert archive.size > 90_000_000
        assert archive.citation
