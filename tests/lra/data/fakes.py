"""Small files of every task that reads files, and their examples, in every supported format."""

import functools
import hashlib
import io
import itertools
import random
import tarfile

import numpy as np
from PIL import Image

from dataprep import imdb
from lra import data
from lra.data import image, listops, pathfinder_generator, retrieval, text

REVIEWS_PER_CLASS = 20
IMAGES_PER_FILE = 40

# The folder of each task in the folder of all data.
FOLDERS = {
    "text": "aclImdb",
    "image": "cifar-10-batches-bin",
    "listops": "listops-1000",
    "retrieval": "tsv_data",
    "pathfinder32-easy": "pathfinder32/curv_baseline",
}
PAPERS = [
    f"Paper {number}, on {word} and naïve “quotes”\\n, b'as it stands'"
    for number, word in enumerate(["parsing", "tagging", "speech", "dialogue", "summaries"] * 3)
]
PAIRS_PER_SPLIT = {"train": 97, "valid": 13, "test": 11}


@functools.cache
def files(task):
    """Returns a dict from file name below the folder of a task to content."""
    if task == "text":
        return reviews()
    if task == "image":
        return batches()
    if task == "listops":
        return {name: tsv(trees()[split]) for split, name in listops.FILES.items()}
    if task == "retrieval":
        return {
            name: b"".join(pair_line(*pair) for pair in pairs()[split])
            for split, name in retrieval.FILES.items()
        }
    drawn = drawn_images()
    found = {}
    for part, rows in ((2, range(13)), (10, range(13, 23))):
        lines = []
        for row in rows:
            name = f"sample_{row}.png"
            found[f"imgs/{part}/{name}"] = png(drawn.images[row])
            lines.append(f"imgs/{part} {name} {row} {drawn.labels[row]} 1.0 6 2 2 0.5 1 1\n")
        found[f"metadata/{part}.npy"] = "".join(lines).encode()
    return found


def examples(task):
    """Returns the examples in the files of a task, (content, label) or (text, text, label), by splits.

    Splits that the task draws from the same examples are joined by "+".
    """
    if task == "listops":
        return {split: list(map(tuple, own)) for split, own in trees().items()}
    if task == "retrieval":
        return {
            split: [
                (PAPERS[one].encode(), PAPERS[other].encode(), label) for label, one, other in own
            ]
            for split, own in pairs().items()
        }
    if task.startswith("pathfinder"):
        drawn = drawn_images()
        images = [pixels.tobytes() for pixels in drawn.images]
        return {"train+valid+test": list(zip(images, drawn.labels.tolist(), strict=True))}
    found = {"train+valid": [], "test": []}
    if task == "text":
        for name, content in reviews().items():
            split = "test" if name.startswith("test") else "train+valid"
            found[split].append((content.strip(), int("/pos/" in name)))
        return found
    for names, own in zip(image.FILES.values(), found.values(), strict=True):
        for record in itertools.chain(*(records(batches()[name]) for name in names)):
            gray = image.to_gray(record[1:].reshape(3, 1024).T)
            own.append((gray.tobytes(), int(record[0])))
    return found


def rows(split):
    """Returns the examples of a split in the format of `examples`."""
    first = split.sequences.first_id
    return [
        (*((ids - first).astype(np.uint8).tobytes() for ids in sequences), label)
        for *sequences, label in split
    ]


def load(task, dir, **changes):
    """Opens a task whose files, or whose fake of tfds, are below `dir`."""
    values = {"task": task, "dir": str(dir), "max_len": 4096, "workers": 1} | changes
    return load_config(data.DataConfig(**values))


def load_config(config):
    """Opens the task of a config, which may have as few reviews and images as these files."""
    if config.task == "text":
        return text.load(config, per_class=REVIEWS_PER_CLASS)
    if config.task == "image":
        return image.load(config, images_per_file=IMAGES_PER_FILE)
    return data.load(config)


@functools.cache
def trees():
    """Returns 20 trees for each split of ListOps."""
    drawn = iter(listops.generate_chunk(7, 0, 20, 60).trees)
    return {split: list(itertools.islice(drawn, 20)) for split in listops.FILES}


@functools.cache
def drawn_images():
    """Returns 23 images of Pathfinder."""
    return pathfinder_generator.generate(32, "easy", seed=0, start=0, stop=23)


@functools.cache
def pairs():
    """Returns (label, paper, paper) for each split of Retrieval, sorted by label."""
    rng = random.Random(3)
    couples = list(itertools.permutations(range(len(PAPERS)), 2))
    labeled = ((rng.choice([0, 1]), *couple) for couple in rng.sample(couples, 121))
    return {
        split: sorted(itertools.islice(labeled, count)) for split, count in PAIRS_PER_SPLIT.items()
    }


def pair_line(label, one, other, text1=None, text2=None):
    """Returns a line of Retrieval's files; the ids are numbers of papers."""
    columns = (f"{label}.0", f"P{one}", f"P{other}", text1 or PAPERS[one], text2 or PAPERS[other])
    return "\t".join(columns).encode() + b"\n"


def png(pixels):
    """Returns the PNG file of an image."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def records(content):
    """Returns the labels and planes in a file of CIFAR-10, [N, 3073]; may be changed."""
    return np.frombuffer(content, np.uint8).reshape(-1, 3073).copy()


def reviews(per_class=REVIEWS_PER_CLASS):
    """Returns a dict from file name below aclImdb to content: multi-byte letters, HTML, white space."""
    files = {}
    for split in ("train", "test"):
        for sentiment, rating in (("neg", 2), ("pos", 9)):
            for i in range(per_class):
                content = f"A {sentiment} review, né {split} №{i}.<br />Yes.{' Again.' * i}"
                if i % 3 == 0:
                    content = f" \n{content}\t "
                files[f"{split}/{sentiment}/{i}_{rating}.txt"] = content.encode()
    return files


def batches(images_per_file=IMAGES_PER_FILE):
    """Returns a dict from file name below cifar-10-batches-bin to content: noise that never changes."""
    files = {}
    for number, name in enumerate(name for names in image.FILES.values() for name in names):
        labels = (7 * np.arange(images_per_file) + number) % 10
        noise = hashlib.shake_256(name.encode()).digest(3072 * images_per_file)
        planes = np.frombuffer(noise, np.uint8).reshape(images_per_file, 3072)
        files[name] = np.c_[labels, planes].astype(np.uint8).tobytes()
    return files


def write_folder(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_archive(path, files, prefix):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_tfds(data_dir, name, features, splits, config=None, version="1.0.0", **info):
    """A dataset as tfds prepares it; `splits` is name to a list of examples, `info` further properties."""
    import tensorflow_datasets as tfds

    dataset = name

    class Fake(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = dataset
        VERSION = tfds.core.Version(version)
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config, version=version)] if config else []

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features(tfds.features)), **info
            )

        def _split_generators(self, dl_manager):
            return {split: iter(enumerate(examples)) for split, examples in splits.items()}

        _generate_examples = None  # abstract in tfds; the splits bring their examples themselves

    Fake(data_dir=data_dir, file_format="array_record").download_and_prepare()
    return data_dir / name / (config or "") / version


def write_imdb_tfds(data_dir, files):
    """As tfds's own imdb_reviews: text without white space around it, shuffled, no file names."""
    splits = {"train": [], "test": [], "unsupervised": [{"text": "?", "label": -1}]}
    for name, content in files.items():
        split, sentiment, _ = name.split("/")
        splits[split].append({"text": content.strip(), "label": imdb.CLASS_NAMES.index(sentiment)})

    def features(connectors):
        label = connectors.ClassLabel(names=imdb.CLASS_NAMES)
        return {"text": connectors.Text(), "label": label}

    return write_tfds(data_dir, "imdb_reviews", features, splits, config="plain_text")


def write_cifar_tfds(data_dir, files):
    """As tfds's own cifar10: PNG in colour, shuffled, with ids."""
    splits = {split: [] for split in image.FILES}
    for split, names in image.FILES.items():
        for row, record in enumerate(np.concatenate([records(files[name]) for name in names])):
            pixels = png(record[1:].reshape(3, 32, 32).transpose(1, 2, 0))
            example = {"id": f"{split}_{row:05d}", "image": pixels, "label": int(record[0])}
            splits[split].append(example)

    def features(connectors):
        return {
            "id": connectors.Text(),
            "image": connectors.Image(shape=(32, 32, 3)),
            "label": connectors.ClassLabel(num_classes=10),
        }

    return write_tfds(data_dir, "cifar10", features, splits, version="3.0.2")


def official_text(tokens):
    """What the official generator prints for a tree: left-nested pairs, each as `( a b )`."""
    open_lists = [[]]
    for word in listops.decode(tokens).split():
        if word in listops.OPERATORS:
            open_lists.append([word])
        elif word != "]":
            open_lists[-1].append(word)
        else:
            operator, *arguments = open_lists.pop()
            pairs = "".join(f" {argument} )" for argument in [*arguments, "]"])
            open_lists[-1].append("( " * (len(arguments) + 1) + operator + pairs)
    ((text,),) = open_lists
    return text


def tsv(split):
    """Returns the file of a split as the official generator writes it."""
    rows = (f"{official_text(list(tokens))}\t{label}\r\n" for tokens, label in split)
    return "".join(["Source\tTarget\r\n", *rows]).encode()
