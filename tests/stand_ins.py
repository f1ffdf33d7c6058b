"""Small stand-ins for data sets on disk, with the official names of files and keys."""

import pickle
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PER_CLASS = 20


def pixels(n: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), np.arange(n) % classes


class Cifar:
    """All forms of a small CIFAR with the same images: five training batches and a test batch, or one of each."""

    def __init__(self, root: Path, fine: bool) -> None:
        self.classes = [f"class_{k:02d}" for k in range(20)] if fine else CLASSES10
        k, self.fine = len(self.classes), fine
        self.train, self.test = pixels(PER_CLASS * k, k, 0), pixels(4 * k, k, 1)
        name, batches = ("cifar-100", ["train"]) if fine else ("cifar-10", [f"data_batch_{b}" for b in range(1, 6)])
        self.folder = root / "python" / (f"{name}-python" if fine else f"{name}-batches-py")
        self.binary = root / "binary" / (f"{name}-binary" if fine else f"{name}-batches-bin")
        self.tree = root / "tree"
        parts = np.array_split(np.arange(len(self.train[1])), len(batches))
        split = {batch: (self.train[0][i], self.train[1][i]) for batch, i in zip(batches, parts, strict=True)}
        split["test" if fine else "test_batch"] = self.test
        self.write_python(split)
        self.write_binary(split)
        self.write_tree()
        self.archive = root / "archive" / f"{name}-python.tar.gz"
        self.archive.parent.mkdir()
        with tarfile.open(self.archive, "w:gz") as tar:
            tar.add(self.folder, self.folder.name)

    def write_python(self, split: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        self.folder.mkdir(parents=True)
        for name, (images, labels) in split.items():
            content = {b"data": images.reshape(len(images), -1), b"filenames": [b"a.png"] * len(images)}
            content |= {b"fine_labels" if self.fine else b"labels": labels.tolist()}
            content |= {b"coarse_labels": [0] * len(labels)} if self.fine else {}
            (self.folder / name).write_bytes(pickle.dumps(content, protocol=2))
        meta = {b"fine_label_names" if self.fine else b"label_names": [c.encode() for c in self.classes]}
        (self.folder / ("meta" if self.fine else "batches.meta")).write_bytes(pickle.dumps(meta, protocol=2))

    def write_binary(self, split: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        self.binary.mkdir(parents=True)
        for name, (images, labels) in split.items():
            head = [np.zeros_like(labels)] * self.fine + [labels]
            rows = np.concatenate([np.stack(head, 1).astype(np.uint8), images.reshape(len(images), -1)], axis=1)
            (self.binary / f"{name}.bin").write_bytes(rows.tobytes())
        names = "fine_label_names.txt" if self.fine else "batches.meta.txt"
        (self.binary / names).write_text("\n".join(self.classes) + "\n")

    def write_tree(self) -> None:
        for part, (images, labels) in (("train", self.train), ("test", self.test)):
            for i, (image, label) in enumerate(zip(images, labels, strict=True)):
                path = self.tree / part / self.classes[label] / f"{i:05d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image.transpose(1, 2, 0)).save(path)


def write_class_folders(root: Path, classes: int, count: int, size: tuple[int, int] = (40, 30), seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for k in range(classes):
        (root / f"kind{k}").mkdir(parents=True)
        for i in range(count):
            array = rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
            Image.fromarray(array).save(root / f"kind{k}" / f"{i}.jpg")


COLOURS = {"blue": (40, 60, 200), "green": (60, 190, 70), "red": (200, 50, 60)}


def write_coloured_folders(root: Path, count: int, size: tuple[int, int] = (16, 16), seed: int = 0) -> None:
    """Write class folders that a small network learns within two epochs: the class is the colour."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            array = np.clip(rng.normal(colour, 40, (*size[::-1], 3)), 0, 255).astype(np.uint8)
            Image.fromarray(array).save(root / name / f"{i}.png")


def write_tiny_imagenet(folder: Path, per_class: int = 9) -> Path:
    rng, root = np.random.default_rng(0), folder / "tiny-imagenet-200"
    lines = []
    (root / "val" / "images").mkdir(parents=True)
    for k in range(4):
        folder = root / "train" / f"n0{k}" / "images"
        folder.mkdir(parents=True)
        (root / "train" / f"n0{k}" / f"n0{k}_boxes.txt").write_text("n00_0.JPEG\t0\t0\t62\t62\n")
        for i in range(per_class):
            image = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
            (image.convert("L") if i == 8 else image).save(folder / f"n0{k}_{i}.JPEG", "JPEG")
        for i in range(2):
            name = f"val_{2 * k + i}.JPEG"
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(
                root / "val" / "images" / name, "JPEG"
            )
            lines.append(f"{name}\tn0{k}\t0\t32\t44\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines[::-1]) + "\n")
    return root


def write_camelyon17(folder: Path, size: int = 96) -> Path:
    """Two training images, two of id_val and two of each shifted set for both classes, as WILDS lays them out."""
    rng, root = np.random.default_rng(0), folder / "camelyon17_v1.0"
    rows, number = [], 0
    # Hospital, and the split column, which says 0 or 1 for the shifted hospitals too.
    for center, split in ((0, 0), (3, 0), (4, 1), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)):
        for tumor in (0, 1):
            patient, node, x, y = f"{4 + center:03d}", center, 3328 + 32 * number, 21792
            place = f"patient_{patient}_node_{node}"
            path = root / "patches" / place / f"patch_{place}_x_{x}_y_{y}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixel = np.concatenate([rng.integers(0, 256, (size, size, 3)), np.full((size, size, 1), 255)], 2)
            Image.fromarray(pixel.astype(np.uint8)).save(path)  # with an alpha channel, as the released files have
            rows.append(f"{number},{patient},{node},{x},{y},{tumor},{center},{center},{split}")
            number += 1
    header = ",patient,node,x_coord,y_coord,tumor,slide,center,split"
    (root / "metadata.csv").write_text("\n".join([header, *rows]) + "\n")
    return root


def write_iwildcam(folder: Path, size: tuple[int, int] = (60, 40)) -> Path:
    rng, root = np.random.default_rng(0), folder / "iwildcam_v2.0"
    (root / "train").mkdir(parents=True)
    rows = []
    for split in ("train", "train", "id_val", "id_test", "val", "test"):
        for y in range(3):
            name = f"{len(rows):08x}.jpg"
            Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(root / "train" / name)
            rows.append(f"{split},0,{len(rows)},{y},2013-06-05 05:44:19.000,{y + 10},{name}")
    header = "split,location_remapped,sequence_remapped,y,datetime,category_id,filename"
    (root / "metadata.csv").write_text("\n".join([header, *rows]) + "\n")
    (root / "categories.csv").write_text("y,category_id,name\n0,10,empty\n1,11,tayassu pecari\n2,12,cuniculus paca\n")
    return root


def write_fmow(folder: Path, size: int = 224) -> Path:
    rng, root = np.random.default_rng(0), folder / "fmow_v1.1"
    (root / "images").mkdir(parents=True)
    rows = []
    periods = [("seq", 2010), ("train", 2008), ("train", 2012), ("train", 2014), ("val", 2012), ("val", 2013)]
    periods += [("test", 2009), ("test", 2014), ("val", 2015), ("val", 2016), ("test", 2016), ("test", 2017)]
    for split, year in periods:
        for category in ("zoo", "airport", "multi-unit_residential"):
            image = Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8))
            image.save(root / "images" / f"rgb_img_{len(rows)}.png")
            rows.append(f"{len(rows)},{split},{category},FRA,{year}-12-31T23:59:59Z")
    (root / "rgb_metadata.csv").write_text("\n".join([",split,category,country_code,timestamp", *rows]) + "\n")
    (root / "country_code_mapping.csv").write_text("name,alpha-3,region\nFrance,FRA,Europe\n")
    return root
