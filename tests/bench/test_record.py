import json
from pathlib import Path

import pytest

from rookery_bench import main, record, report
from rookery_bench.record import Record, Verdict, cell


def make(bench: str = "pong", subject: str = "Pong", *, date: str = "2026-01-02", rate: float = 912.3, **more) -> Record:
    conditions = {
        "date": f"{date}T10:00:00+00:00", "cores": 2, "processor": "Z80", "load_before": [0.5, 0.4, 0.3],
        "versions": {"rookery": "1.2", "jax": "9"}, "commit": "abc",
    }  # fmt: skip
    rows = [{"arm": "rookery", "steps/s": rate, "range": (900.0, 1234.0)}, {"arm": "a|b", "steps/s": None}]
    values = {
        "command": f"rookery bench {bench}", "settings": {"seeds": [0, 1]}, "rows": rows,
        "verdicts": [Verdict.of("ratio", 3.5, at_least=3.3)], "notes": ["how"],
    }  # fmt: skip
    return Record(bench=bench, subject=subject, conditions=conditions, **values | more)


def test_numbers_are_shown_with_the_digits_that_matter():
    shown = [cell(v) for v in (12345.6, 99.94, 9.876, 0.01234, 0.0, 7, 1234567, None, (1.0, 250.0), "x", True)]
    assert shown == ["12,346", "99.9", "9.88", "0.0123", "0", "7", "1,234,567", "-", "1.00 to 250", "x", "yes"]


def test_a_verdict_knows_which_side_of_the_bar_is_right():
    assert Verdict.of("a", 15.0, at_least=15.0).met and not Verdict.of("a", 14.9, at_least=15.0).met
    assert Verdict.of("a", 0.6, at_most=0.6).met and not Verdict.of("a", 0.61, at_most=0.6).met
    assert Verdict.of("a", 0.0, at_most=0.0).met


def test_a_figure_that_could_not_be_had_does_not_clear_its_bar():
    assert not Verdict.of("a", None, at_least=1.0).met and not Verdict.of("a", None, at_most=1.0).met
    assert Verdict.of("a", None, at_most=1.0).sentence() == "a: - (bar ≤ 1.00: not met)"


def test_a_record_survives_its_file(tmp_path: Path):
    path = tmp_path / "new" / "pong.jsonl"
    record.append(path, [make(rate=1.0)])
    record.append(path, [make(rate=2.0)])
    assert [r.rows[0]["steps/s"] for r in record.read([path])] == [1.0, 2.0]
    assert record.read([path])[0].verdicts == make().verdicts
    assert all(json.loads(line)["bench"] == "pong" for line in path.read_text().splitlines())


def test_a_line_that_is_no_record_is_named(tmp_path: Path):
    path = tmp_path / "pong.jsonl"
    path.write_text(json.dumps(make().to_dict()) + "\n{}\n")
    with pytest.raises(ValueError, match=r"pong\.jsonl, line 2"):
        record.read([path])


def test_the_newest_record_of_each_subject_counts_wherever_it_stands():
    records = [make(date="2026-03-01", rate=3.0), make(subject="other", rate=9.0), make(date="2026-02-01", rate=2.0)]
    assert [(r.subject, r.rows[0]["steps/s"]) for r in record.newest(records)] == [("Pong", 3.0), ("other", 9.0)]


def test_the_text_aligns_numbers_to_the_right_and_tells_the_circumstances():
    lines = record.text(make()).splitlines()
    assert lines[1] == "2026-01-02, 2 cores of Z80, load average before 0.50; rookery 1.2, jax 9, commit abc; seeds 0, 1"
    assert lines[3:6] == ["arm      steps/s  range", "rookery      912  900 to 1,234", "a|b            -  -"]
    assert "ratio: 3.50 (bar ≥ 3.30: met)" in lines and "- how" in lines


def test_the_markdown_is_a_table_with_escaped_cells():
    lines = record.markdown(make(failures=["it broke"])).splitlines()
    assert lines[2:6] == [
        "| arm | steps/s | range |", "| --- | --- | --- |", "| rookery | 912 | 900 to 1,234 |", "| a\\|b | - | - |"
    ]  # fmt: skip
    assert "- failed: it broke" in lines and lines[-1].startswith("`rookery bench pong`: 2026-01-02")


def test_records_of_different_days_are_merged_with_their_dates():
    one = make("learning", "a", rows=[{"task": "a"}])
    two = make("learning", "b", date="2026-01-03", rows=[{"task": "b"}])
    merged = record.merge([one, two])
    assert merged.rows == [{"task": "a", "date": "2026-01-02"}, {"task": "b", "date": "2026-01-03"}]
    assert len(merged.verdicts) == 2 and merged.notes == ["how"]
    assert record.merge([one]) is one


def test_the_report_fills_the_marks_of_a_page_and_leaves_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture):
    record.append(tmp_path / "pong.jsonl", [make()])
    page = tmp_path / "benchmarks.md"
    marks = "<!-- bench:pong -->\nold\nlines<!-- /bench:pong -->\n<!-- bench:memory -->kept<!-- /bench:memory -->\n"
    page.write_text(f"before\n{marks}")
    for _ in range(2):  # made anew each time, not added to
        assert main(["report", "--records", str(tmp_path / "pong.jsonl"), "--write", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- bench:pong -->\n### Pong\n") and "old" not in text and ">kept<" in text
    assert text.count("| rookery | 912 | 900 to 1,234 |") == 1 and "| a\\|b | - | - |" in text


def beside(left_out: int | None = None) -> list[Record]:
    """A record for each bench of the table `peers`; one arm can be left out."""
    rows: dict[tuple[str, str], list[dict]] = {}
    for index, row in enumerate(report.PEERS):
        arms = rows.setdefault((row.bench, row.subject), [{"arm": row.ours, row.column: 1000.0}])
        arms += [{"arm": row.theirs, row.column: 10.0 + index}] * (index != left_out)
    return [make(bench, subject, rows=arms) for (bench, subject), arms in rows.items()]


def test_the_table_beside_peers_is_made_of_the_records_with_time_to_a_score_first():
    lines = report.marks(beside())["peers"].splitlines()
    assert lines[2] == "| CartPole, PPO | seconds to a return of 475 | 1,000 | 10.0 stable-baselines3 | 2 |"
    measured = [line.split(" | ")[1] for line in lines[2:7]]
    assert measured == sorted(measured, key=lambda words: not words.startswith("seconds"))
    assert [line.split(" | ")[3].split()[0] for line in lines[2:7]] == ["10.0", "11.0", "12.0", "13.0", "14.0"]
    assert "2026-01-02, 2 cores of Z80" in "\n".join(lines[7:]) and "0.5 to 0.5" in lines[-1]


@pytest.mark.parametrize("missing", range(len(report.PEERS)))
def test_the_table_beside_peers_leaves_no_row_out(missing):
    page = "<!-- bench:peers -->kept<!-- /bench:peers -->"
    assert report.fill(page, beside(left_out=missing)) == page != report.fill(page, beside())


def test_the_report_shows_learning_as_one_table(tmp_path: Path, capsys: pytest.CaptureFixture):
    for name in ("a", "b"):
        record.append(tmp_path / "learning.jsonl", [make("learning", name, rows=[{"task": name}])])
    assert main(["report", "--records", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("| task |") == 1 and "| a |\n| b |" in out


def test_a_report_without_records_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(["report", "--records", str(tmp_path)]) == 2
    assert "--out" in capsys.readouterr().err


def test_the_conditions_name_no_place_of_this_machine():
    now = record.conditions()
    assert {"rookery", "jax", "numpy", "gymnasium"} <= now["versions"].keys()
    assert str(Path.cwd()) not in json.dumps(now) and now["cores"] >= 1


def test_help_lists_every_bench_on_one_screen(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")  # a narrower one is filled with more lines: tests/cli/test_help.py
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"rookery bench {name}" in out for name in ("cartpole", "pong", "roofline", "memory", "learning", "report"))
    assert len(out.splitlines()) <= 30 and all(len(line) <= 120 for line in out.splitlines())


def test_an_unknown_bench_is_refused_with_the_nearest(capsys: pytest.CaptureFixture):
    assert main(["cartpool"]) == 2
    assert "Did you mean 'cartpole'" in capsys.readouterr().err
