import numpy as np

from lra.data import pictures


def test_a_character_is_two_rows_high_and_as_bright_as_its_mean():
    pixels = np.array([[0, 255, 0, 100], [0, 255, 255, 100], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert pictures.as_text(pixels.ravel(), (4, 4)) == " @=-\n"


def test_what_was_cut_off_is_black():
    assert pictures.as_text(np.full(2, 255), (2, 4)) == "=="


def test_a_large_picture_is_averaged_down():
    text = pictures.as_text(np.full(128 * 128, 255), (128, 128))
    assert text == "\n".join(["@" * 64] * 32)


def test_a_contact_sheet_holds_every_picture_at_its_place(tmp_path):
    from PIL import Image

    images = [np.full((32, 32), shade) for shade in (10, 20, 30, 40, 50)]
    path = tmp_path / "sheet.png"
    pictures.contact_sheet(path, images, ["joined"] * 5, columns=3)
    sheet = np.asarray(Image.open(path))
    for shade in (10, 20, 30, 40, 50):
        assert (sheet == shade).sum() >= (3 * 32) ** 2
    assert sheet[6 + 95, 6 + 95] == 10
    assert sheet[6, 6 + 2 * (96 + 6)] == 30
    assert sheet[6 + 96 + 6 + 14, 6] == 40
