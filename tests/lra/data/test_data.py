from lra import data


def test_properties_of_a_task_are_known_before_its_data_are_prepared():
    found = {
        name: (info.vocab_size, info.num_classes, info.total_steps, *info.sizes.values())
        for name, info in data.TASKS.items()
        if "-" not in name
    }
    pathfinder = (160_000, 20_000, 20_000)
    assert found == {
        "listops": (16, 10, 5_000, 96_000, 2_000, 2_000),
        "text": (257, 2, 20_000, 22_500, 2_500, 25_000),
        "retrieval": (257, 2, 30_000, 147_086, 18_090, 17_437),
        "image": (256, 10, 35_000, 45_000, 5_000, 10_000),
        "pathfinder32": (256, 2, 62_400, *pathfinder),
        "pathfinder64": (256, 2, 124_800, *pathfinder),
        "pathfinder128": (256, 2, 249_600, *pathfinder),
        "pathfinder256": (256, 2, 998_400, *pathfinder),
    }
    others = ["easy", "intermediate"]
    names = [f"pathfinder{side}-{level}" for side in (32, 64, 128, 256) for level in others]
    assert data.TASKS.keys() - found.keys() == {"listops-short", *names}
