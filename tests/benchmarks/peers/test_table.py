from benchmarks.peers.table import BASE, append, markdown, medians, read_records, rows


def record(contestant, seconds, workload="C"):
    figures = {"seconds": seconds, "start-up": 4.0, "PSS GiB": 0.5, "accuracy": 0.9}
    return {"workload": workload, "contestant": contestant, **figures}


def test_turns_become_medians():
    found = medians([record("pfl", s) for s in (1.0, 9.0, 2.0)], "C")
    assert found["pfl"]["seconds"] == 2.0


def test_ratios_are_to_the_hand_written_loop_of_the_same_workload():
    records = [record(BASE, 2.0), record("pfl", 1.0), record(BASE, 50.0, "B"), record("pfl", 100.0, "B")]
    assert [row[2] for row in rows(records, "C")] == ["1.00", "0.50"]
    assert [row[2] for row in rows(records, "B")] == ["1.00", "2.00"]


def test_without_the_hand_written_loop_there_is_no_ratio():
    ((name, seconds, ratio, *_),) = rows([record("pfl", 1.0)], "C")
    assert (name, seconds, ratio) == ("pfl", "1", "-")


def test_ratios_are_taken_turn_by_turn_and_shown_with_their_range():
    turns = [(2.0, 1.0), (4.0, 1.0), (1.0, 3.0)]
    records = [measured for base, own in turns for measured in (record(BASE, base), record("pfl", own))]
    assert [row[2] for row in rows(records, "C")] == ["1.00", "0.50 (0.25 to 3.00)"]


def test_a_table_is_markdown_with_columns_of_equal_width():
    lines = markdown([record(BASE, 2.0), record("pfl", 1.0)]).splitlines()
    assert lines[0].startswith("(C) MNIST")
    table = lines[2:]
    assert len(table) == 4
    assert len({len(line) for line in table}) == 1
    assert set(table[1]) == {"|", "-"}


def test_measurements_join_those_of_earlier_calls(tmp_path):
    path = tmp_path / "results.jsonl"
    append(path, record("pfl", 1.0))
    append(path, record("pfl", 3.0))
    assert read_records(path) == [record("pfl", 1.0), record("pfl", 3.0)]
