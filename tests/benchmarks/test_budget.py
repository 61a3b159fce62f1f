"""The table of memory and time on TPUs."""

from benchmarks import budget

ROW = {"topology": "v5e:1x1", "mode": "gradient", "length": 2**23, "floor_seconds": 0.5}


def test_table_has_a_row_if_the_kernels_do_not_fit():
    fits = {"fits": True, "seconds": 2.0, "temp_bytes": 0, "kept_bytes": 0}
    does_not = {"fits": False, "temp_bytes": None, "kept_bytes": budget.MIB}
    rows = [{**ROW, **does_not, "form": form} for form in ("kernels", "plain")]
    *_, line = budget.markdown({"rows": [*rows, {**ROW, **fits, "form": "literal"}]}).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    start = ["v5e", "gradient", "8,388,608", "500,000", "does not fit", "", "", "1.0"]
    assert cells == [*start, "does not fit", "", "2,000,000", "0", "", ""]
