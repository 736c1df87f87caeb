"""The record beside the data survives, and is derived for stacks that have none."""

from pathlib import Path

import pytest

from stack.primary_record import (
    CONTROL,
    FILE,
    DataFolder,
    PrimaryRecord,
    Promotion,
    RecordRefused,
    derive_record,
    read_folder,
    read_record,
    save_record,
)

RECORD = PrimaryRecord(2**63 + 5, "postgres-2", 3, 1_800_000_000.5, Promotion("postgres-3", 3))
GONE = DataFolder("missing")


def test_a_record_is_read_as_it_was_saved(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    save_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD
    save_record(tmp_path, PrimaryRecord(1, "postgres-1", 1))
    assert read_record(tmp_path) == PrimaryRecord(1, "postgres-1", 1)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_damaged_record_is_not_no_record(tmp_path: Path) -> None:
    for text in ("{", "{}", '{"promotion": 3}', "[]"):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(RecordRefused, match="cannot be read"):
            read_record(tmp_path)


def test_a_record_that_the_disk_does_not_give_is_not_no_record(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(RecordRefused, match="see the rights and the disk"):
        read_record(tmp_path)


def make_folder(data: Path, control: bytes) -> Path:
    (data / "global").mkdir(parents=True)
    (data / "PG_VERSION").write_text("18\n")
    (data / "global" / "pg_control").write_bytes(control)
    return data


def test_what_a_folder_holds(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "nothing") == GONE
    control = CONTROL.pack(2**63 + 5, 1800, 202506291, 6, 0, 0, 0, 4) + bytes(8000)
    data = make_folder(tmp_path / "data", control)
    assert read_folder(data) == DataFolder("primary", 2**63 + 5, 4)
    (data / "standby.signal").touch()
    assert read_folder(data) == DataFolder("standby", 2**63 + 5, 4)
    (data / "PG_VERSION").unlink()
    assert read_folder(data) == GONE
    assert read_folder(make_folder(tmp_path / "short", b"")) == DataFolder("primary")
    assert read_folder(make_folder(tmp_path / "other", b"\xff" * 8192)) == DataFolder("primary")


def test_older_stacks_are_adopted() -> None:
    primary, standby = DataFolder("primary", 7, 1), DataFolder("standby", 7, 1)
    names = ("postgres-1", "postgres-2", "postgres-3")

    def derived(*folders: DataFolder) -> PrimaryRecord | None:
        return derive_record(dict(zip(names, folders, strict=True)))

    assert derived(GONE, GONE, GONE) is None
    assert derived(primary, GONE, GONE) == PrimaryRecord(7, "postgres-1", 1)
    assert derived(standby, standby, primary) == PrimaryRecord(7, "postgres-3", 1)
    assert derived(primary, DataFolder("primary", 7, 2), standby) == PrimaryRecord(7, "postgres-2", 2)
    assert derived(GONE, standby, standby) == PrimaryRecord(7, "postgres-1", 1), "its data was erased"
    with pytest.raises(RecordRefused, match="all servers are standbys"):
        derived(standby, standby, standby)
    for unread in (DataFolder("unreadable"), DataFolder("unreadable", 7, 1)):
        with pytest.raises(RecordRefused, match="postgres-1 cannot be read"):
            derived(unread, standby, GONE)
    with pytest.raises(RecordRefused, match="postgres-1 cannot be read"):
        derived(DataFolder("primary"), primary, standby)
    assert derived(DataFolder("primary"), standby, standby) == PrimaryRecord(7, "postgres-1", 1), "its data is damaged"
    with pytest.raises(RecordRefused, match="different databases"):
        derived(primary, DataFolder("standby", 8, 1), standby)
