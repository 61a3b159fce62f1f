import json

from lra.report import recall
from lra.report.__main__ import main
from tests.lra.report.runs import groups_in, write_run, write_seeds

KMEANS = {"name": "nystrom", "num_landmarks": 32, "landmark_selection": "kmeans"}


def write_recall(folder):
    for pairs, accuracy in ((16, 0.5), (4, 0.9)):
        attention = {"name": "nystrom", "num_landmarks": 32}
        write_run(
            folder / f"a{pairs}", task=f"mqar-256-{pairs}", attention=attention, accuracy=accuracy
        )
    write_run(folder / "b", task="mqar-256-4", attention=KMEANS, accuracy=0.95)
    write_seeds(folder / "c", [0.2, 0.4], task="mqar-512-4", attention={"name": "none"})
    write_run(folder / "d", task="mqar-256-4", attention={"name": "linear"}, finished=False)
    return folder


def test_table_has_attentions_by_number_of_pairs_and_length(tmp_path):
    recalled, others = recall.split(groups_in(write_recall(tmp_path)))
    assert not others
    _, _, table, _, title, short = recall.markdown(recalled, tmp_path / "report")
    assert table.splitlines() == [
        "| attention | 4 pairs | 16 pairs |",
        "| --- | ---: | ---: |",
        "| **256 tokens** |  |  |",
        "| nystrom-32 | 90.0 | 50.0 |",
        "| nystrom-32, landmarks kmeans | 95.0 | – |",
        "| **512 tokens** |  |  |",
        "| none | 30.0 ± 14.1 | – |",
    ]
    assert title == "Incomplete runs, which are not shown:"
    assert short == "* mqar-256-4, linear, seed 3: 20 of 600 steps, not finished."


def test_report_has_one_section_for_all_tasks_of_recall(tmp_path, capsys):
    runs = write_recall(tmp_path / "runs")
    out = tmp_path / "out" / "report"
    assert main([str(runs), "--out", str(out)]) == 0
    pictures = [file.name for file in out.parent.glob("*.png")]
    assert pictures == ["report-recall.png"]
    assert capsys.readouterr().out.count("\n## ") == 3
    write_run(runs / "listops")
    assert main([str(runs), "--out", str(out)]) == 0
    assert (out.parent / "report-curves-listops.png").exists()


def test_page_and_numbers_correct_p_values_for_the_same_tests(tmp_path, capsys):
    for task in ("listops", "mqar-256-4"):
        write_seeds(tmp_path / task / "a", [0.30, 0.31, 0.32], task=task)
        softmax = {"name": "softmax"}
        write_seeds(tmp_path / task / "b", [0.32, 0.34, 0.355], task=task, attention=softmax)
    assert main([str(tmp_path), "--out", str(tmp_path / "report")]) == 0
    tasks = json.loads((tmp_path / "report.json").read_text())["tasks"]
    (found,) = tasks["listops"]["comparisons"]
    assert found["p_holm"] == 2 * found["p"]
    assert f"| {found['p']:.3f} | {found['p_holm']:.3f} |" in capsys.readouterr().out
