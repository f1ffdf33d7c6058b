"""The benchmark's corruptions image by image, from libraries nobody here wrote.

scikit-image (noise, Gaussian filter, HSV), OpenCV (convolution, affine warp, resize, Canny, distance transform), SciPy
(zoom, interpolation), Pillow (JPEG, box resampling) and ImageMagick through Wand (motion blur) do the work; what is
written here is how the benchmark's paper and generators put them together. All take an RGB uint8 array and return one.
"""

import io
from pathlib import Path

import cv2
import numpy as np
import scipy.ndimage
import skimage
from PIL import Image

try:
    from wand.image import Image as WandImage
except ImportError:  # ImageMagick is not installed
    WandImage = None

Array = np.ndarray


def finish(x: Array) -> Array:
    """Cut to 8 bits as the generators do: clipped, then truncated."""
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


def gaussian(x: Array, sigma: float, **options: object) -> Array:
    channel = -1 if x.ndim == 3 else None
    return skimage.filters.gaussian(x, sigma=sigma, channel_axis=channel, **options)


def gaussian_noise(image: Array, sigma: float, rng: np.random.Generator) -> Array:
    return finish(image / 255 + rng.normal(0, sigma, image.shape))


def speckle_noise(image: Array, sigma: float, rng: np.random.Generator) -> Array:
    x = image / 255
    return finish(x + x * rng.normal(0, sigma, image.shape))


def shot_noise(image: Array, rate: float, rng: np.random.Generator) -> Array:
    return finish(rng.poisson(image / 255 * rate) / rate)


def impulse_noise(image: Array, amount: float, rng: np.random.Generator) -> Array:
    return finish(skimage.util.random_noise(image / 255, mode="s&p", amount=amount, rng=rng))


def gaussian_blur(image: Array, sigma: float, rng: np.random.Generator) -> Array:
    return finish(gaussian(image / 255, sigma))


def defocus_blur(image: Array, amount: list[float], rng: np.random.Generator) -> Array:
    radius, softness = amount
    reach, side = (8, 3) if radius <= 8 else (radius, 5)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (x**2 + y**2 <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(disk / disk.sum(), (side, side), softness)
    return finish(np.dstack([cv2.filter2D(image[..., c] / 255, -1, kernel) for c in range(3)]))


def glass_blur(image: Array, amount: list[float], rng: np.random.Generator, *, one_by_one: bool = False) -> Array:
    """Copy pixels; the generators draw `one_by_one`, which takes much longer and is the same."""
    sigma, reach, times = amount
    x = finish(gaussian(image / 255, sigma))
    for _ in range(times):
        offset = [] if one_by_one else rng.integers(-reach, reach, (*x.shape[:2], 2)).tolist()
        for row in range(len(x) - reach, reach, -1):
            for column in range(x.shape[1] - reach, reach, -1):
                right, down = rng.integers(-reach, reach, 2) if one_by_one else offset[row][column]
                x[row, column] = x[row + down, column + right]  # the generator's "swap" of two views copies
    return finish(gaussian(x / 255, sigma))


def magick_motion(image: Array, radius: float, sigma: float, angle: float) -> Array:
    """Blur by ImageMagick itself."""
    with WandImage.from_array(image) as wand:
        wand.motion_blur(radius=radius, sigma=sigma, angle=angle)
        return np.asarray(wand)[..., : image.shape[2]].reshape(image.shape)


def motion_blur(image: Array, amount: list[float], rng: np.random.Generator) -> Array:
    return magick_motion(image, *amount, rng.uniform(-45, 45))


def enlarged(x: Array, factor: float) -> Array:
    """Cut out the middle and enlarge it to the size of the whole."""
    size = len(x)
    cut = int(np.ceil(size / factor))
    top = (size - cut) // 2
    big = scipy.ndimage.zoom(x[top : top + cut, top : top + cut], (factor, factor, 1), order=1)
    trim = (len(big) - size) // 2
    return big[trim : trim + size, trim : trim + size]


def zoom_blur(image: Array, amount: list[float], rng: np.random.Generator) -> Array:
    x = (image / 255).astype(np.float32)
    factors = np.arange(*amount)
    return finish((x + sum(enlarged(x, factor) for factor in factors)) / (len(factors) + 1))


def snow(image: Array, amount: list[float], rng: np.random.Generator) -> Array:
    mean, spread, factor, threshold, radius, sigma, share = amount
    flakes = enlarged(rng.normal(mean, spread, (*image.shape[:2], 1)), factor)
    flakes[flakes < threshold] = 0
    flakes = magick_motion(finish(flakes), radius, sigma, rng.uniform(-135, -45)) / 255
    x = (image / 255).astype(np.float32)
    white = np.maximum(x, cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., None] * 1.5 + 0.5)
    return finish(share * x + (1 - share) * white + flakes + np.rot90(flakes, 2))


def read_texture(path: Path, scale: float) -> Array:
    return cv2.resize(cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB), None, fx=scale, fy=scale)


def frost(
    image: Array, amount: list[float], rng: np.random.Generator, folder: Path, scale: float, read: object = read_texture
) -> Array:
    texture = read(sorted(folder.iterdir())[rng.integers(5)], scale)
    top, left = (rng.integers(0, texture.shape[axis] - image.shape[axis]) for axis in (0, 1))
    part = texture[top : top + image.shape[0], left : left + image.shape[1]]
    return np.clip(amount[0] * image + amount[1] * part, 0, 255).astype(np.uint8)


def plasma(size: int, decay: float, rng: np.random.Generator) -> Array:
    """Diamond-square on a torus: every point is the mean of four neighbours half a step away, plus noise."""
    cloud, half, wibble = np.zeros((size, size)), size // 2, 100.0

    def fill(rows: slice, columns: slice, neighbours: list[tuple[int, int]]) -> None:
        total = sum(np.roll(cloud, shift, (0, 1))[rows, columns] for shift in neighbours)
        cloud[rows, columns] = total / 4 + wibble * rng.uniform(-wibble, wibble, total.shape)

    while half >= 1:
        corners, middles = slice(0, size, 2 * half), slice(half, size, 2 * half)
        cross = [(half, 0), (-half, 0), (0, half), (0, -half)]
        fill(middles, middles, [(a, b) for a in (half, -half) for b in (half, -half)])
        fill(corners, middles, cross)
        fill(middles, corners, cross)
        half, wibble = half // 2, wibble / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


def fog(image: Array, amount: list[float], rng: np.random.Generator) -> Array:
    weight, decay = amount
    x, size = image / 255, image.shape[0]
    x_max = x.max()
    return finish((x + weight * plasma(size, decay, rng)[..., None]) * x_max / (x_max + weight))


def in_hsv(image: Array, channel: int, change: object) -> Array:
    x = skimage.color.rgb2hsv(image / 255)
    x[..., channel] = np.clip(change(x[..., channel]), 0, 1)
    return finish(skimage.color.hsv2rgb(x))


def brightness(image: Array, amount: float, rng: np.random.Generator) -> Array:
    return in_hsv(image, 2, lambda value: value + amount)


def saturate(image: Array, amount: list[float], rng: np.random.Generator) -> Array:
    return in_hsv(image, 1, lambda saturation: saturation * amount[0] + amount[1])


def contrast(image: Array, factor: float, rng: np.random.Generator) -> Array:
    x = image / 255
    mean = x.mean((0, 1), keepdims=True)
    return finish((x - mean) * factor + mean)


def jpeg_compression(image: Array, quality: int, rng: np.random.Generator) -> Array:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def pixelate(image: Array, scale: float, rng: np.random.Generator) -> Array:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX))


def elastic_transform(image: Array, amount: list[float], rng: np.random.Generator) -> Array:
    height, width = image.shape[:2]
    strength, sigma, reach = (min(height, width) * value for value in amount)
    side = min(height, width) // 3
    corners = np.float32([[side, side], [side, -side], [-side, -side]]) + np.float32([width // 2, height // 2])
    moved = corners + rng.uniform(-reach, reach, corners.shape).astype(np.float32)
    x = (image / 255).astype(np.float32)
    x = cv2.warpAffine(x, cv2.getAffineTransform(corners, moved), (width, height), borderMode=cv2.BORDER_REFLECT_101)
    shift = [gaussian(rng.uniform(-1, 1, (height, width)), sigma, mode="reflect", truncate=3) for _ in range(2)]
    row, column = np.mgrid[:height, :width]
    place = row + strength * shift[1], column + strength * shift[0]
    moved = [scipy.ndimage.map_coordinates(x[..., c], place, order=1, mode="reflect") for c in range(3)]
    return finish(np.dstack(moved))


def spatter(image: Array, amount: list[float], rng: np.random.Generator) -> Array:
    mean, spread, sigma, threshold, intensity, muddy = amount
    liquid = gaussian(rng.normal(mean, spread, image.shape[:2]), sigma)
    liquid[liquid < threshold] = 0
    x = image / 255
    if muddy:
        mud = gaussian((liquid > threshold).astype(np.float32), intensity)
        mud = np.where(mud < 0.8, 0, mud)[..., None]
        return finish(x * (1 - mud) + mud * np.array([63, 42, 20]) / 255)
    levels = finish(liquid)
    distance = cv2.distanceTransform(255 - cv2.Canny(levels, 50, 150), cv2.DIST_L2, 5)
    relief = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    relief = cv2.blur(cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])), (3, 3))
    film = levels * relief.astype(np.float32)
    return finish(x + intensity * film[..., None] / max(film.max(), 1e-12) * np.array([175, 238, 238]) / 255)
