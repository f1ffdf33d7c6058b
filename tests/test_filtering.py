import io
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from shiftcal import _jpeg, dct_low_pass, fft_low_pass, filtering
from shiftcal._jpeg import from_blocks, quantisation_tables, to_blocks
from shiftcal.filtering import LowPassPolicy


def through_pillow(images: torch.Tensor, quality: int, subsampling: int = 0) -> torch.Tensor:
    decoded = []
    for image in images.permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=quality, subsampling=subsampling)
        decoded.append(np.asarray(Image.open(buffer).convert("RGB")))
    return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("quality", [5, 15, 18, 25, 50, 90])
@pytest.mark.parametrize("images", ["natural_images", "odd_images"])
def test_agrees_with_pillow(images: str, quality: int, request: pytest.FixtureRequest) -> None:
    images = request.getfixturevalue(images)
    difference = dct_low_pass(images, quality).float() - through_pillow(images, quality).float()
    assert difference.abs().mean() < 0.6
    assert difference.mean().abs() < 0.05


@pytest.mark.parametrize("quality", [5, 15, 18, 25, 50, 90])
@pytest.mark.parametrize("images", ["natural_images", "odd_images"])
def test_halved_chroma_agrees_with_pillows_default(images: str, quality: int, request: pytest.FixtureRequest) -> None:
    images = request.getfixturevalue(images)
    reference = through_pillow(images, quality, subsampling=2).float()
    difference = dct_low_pass(images, quality, subsampling="4:2:0").float() - reference
    assert difference.abs().mean() < 0.8
    assert difference.mean().abs() < 0.05
    assert (dct_low_pass(images, quality).float() - reference).abs().mean() > 2 * difference.abs().mean()


def gaussian_in_the_spectrum(image: np.ndarray, ratio: float) -> np.ndarray:
    """Write the formula out for one image [H, W, 3], with the zero frequency in the middle."""
    rows, columns = image.shape[:2]
    r = max(ratio * min(rows, columns) / 2, 1)
    result = np.empty(image.shape)
    for channel in range(3):
        spectrum = np.fft.fftshift(np.fft.fft2(image[:, :, channel].astype(np.float64)))
        for i in range(rows):
            for j in range(columns):
                squared = (i - rows // 2) ** 2 + (j - columns // 2) ** 2
                spectrum[i, j] *= np.exp(-squared / (2 * (r / 1.5) ** 2))
        result[:, :, channel] = np.abs(np.fft.ifft2(np.fft.ifftshift(spectrum)))
    return result


@pytest.mark.parametrize("size", [(16, 16), (11, 14)])
def test_fft_low_pass_is_its_formula(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, 3, *size), generator=generator, dtype=torch.uint8)
    ratios = torch.tensor([0.8, 0.6, 0.4, 0.01])
    ours = fft_low_pass(images, ratios)
    for i, ratio in enumerate(ratios.tolist()):
        exact = gaussian_in_the_spectrum(images[i].permute(1, 2, 0).numpy(), ratio)
        assert np.array_equal(ours[i].permute(1, 2, 0).numpy(), np.floor(exact + 1e-9).clip(0, 255).astype(np.uint8))
        assert torch.equal(ours[i : i + 1], fft_low_pass(images[i : i + 1], ratio))


def test_the_spectrum_filter_takes_absolute_values() -> None:
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    images[..., 12:20, 12:20] = 255  # beside its edges the inverse is negative
    exact = gaussian_in_the_spectrum(images[0].permute(1, 2, 0).numpy(), 0.8)
    expected = np.floor(exact + 1e-9).clip(0, 255).astype(np.uint8)
    assert np.array_equal(fft_low_pass(images, 0.8)[0].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("ratio", [[math.nan], [-1.0], [0.0], [math.inf]])
def test_radii_are_positive(ratio: list[float]) -> None:
    with pytest.raises(ValueError, match="`ratio` should be positive"):
        fft_low_pass(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.tensor(ratio))


def test_strengths_fit_their_filter() -> None:
    for strengths in ((15.7,), (0,), (101,)):
        with pytest.raises(ValueError, match=r"`strengths` should be integers in 1\.\.100"):
            LowPassPolicy(strengths=strengths)
    with pytest.raises(ValueError, match="`strengths` should be positive"):
        LowPassPolicy(filter="fft", strengths=(0.5, -1.0))


def test_memory_order_is_irrelevant() -> None:
    images = torch.randint(0, 256, (64, 3, 96, 96), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for subsampling in ("4:4:4", "4:2:0"):
        expected = dct_low_pass(images, 18, subsampling=subsampling)
        ours = dct_low_pass(images.to(memory_format=torch.channels_last), 18, subsampling=subsampling)
        assert torch.equal(ours, expected), subsampling


def test_a_policy_applies_its_filter(natural_images: torch.Tensor) -> None:
    images, strength = natural_images[:3], torch.tensor([15.0, 18.0, 25.0])
    whole = strength.long()
    assert torch.equal(LowPassPolicy()(images, strength), dct_low_pass(images, whole))
    halved = LowPassPolicy(subsampling="4:2:0")(images, strength)
    assert torch.equal(halved, dct_low_pass(images, whole, subsampling="4:2:0"))
    radii = torch.tensor([0.8, 0.6, 0.4])
    assert torch.equal(LowPassPolicy(filter="fft")(images, radii), fft_low_pass(images, radii))


@pytest.mark.usefixtures("unchecked")
def test_bad_policies_and_options(natural_images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"`ratio` should be in \[0, 1\). Found `ratio = 1.0`"):
        LowPassPolicy(1.0)
    with pytest.raises(ValueError, match="`filter` should be 'dct' or 'fft'"):
        LowPassPolicy(filter="median")
    with pytest.raises(ValueError, match="`subsampling` should be '4:4:4' or '4:2:0'"):
        dct_low_pass(natural_images, 15, subsampling="4:1:1")
    for ratio in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="`ratio` should be positive"):
            fft_low_pass(natural_images, ratio)
    with pytest.raises(ValueError, match=r"`ratio` should be a number, or floating point of shape \[\d+\]"):
        fft_low_pass(natural_images, torch.ones(1))


def test_tables_are_pillows_at_every_quality() -> None:
    for quality in range(1, 101):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8)).save(buffer, "JPEG", quality=quality)
        tables = Image.open(buffer).quantization
        ours = quantisation_tables(torch.tensor([quality]))[0]
        assert ours[0].tolist() == tables[0]
        assert ours[1].tolist() == ours[2].tolist() == tables[1]


def test_each_image_has_its_own_quality(natural_images: torch.Tensor) -> None:
    images = natural_images[:6]
    quality = torch.tensor([5, 15, 18, 25, 50, 90])
    together = dct_low_pass(images, quality)
    for i, q in enumerate(quality.tolist()):
        assert torch.equal(together[i], dct_low_pass(images[i : i + 1], q)[0])


def test_lower_quality_removes_more_high_frequencies(natural_images: torch.Tensor) -> None:
    def energy(images: torch.Tensor) -> float:
        spectrum = torch.fft.rfft2(images.float()).abs().square()
        return float(spectrum[..., 8:24, 8:].mean())

    energies = [energy(dct_low_pass(natural_images, q)) for q in (10, 25, 50, 90)]
    assert energies == sorted(energies)
    assert energies[0] < 0.2 * energy(natural_images)


def test_flat_images_stay() -> None:
    images = torch.arange(0, 256, 5, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16).contiguous()
    assert (dct_low_pass(images, 95).int() - images.int()).abs().max() <= 1


def test_input_is_not_changed_and_views_work(natural_images: torch.Tensor) -> None:
    before = natural_images.clone()
    flat = torch.zeros(1 + natural_images[:2].numel(), dtype=torch.uint8)
    flat[1:] = natural_images[:2].flatten()
    unaligned = flat[1:].view(2, 3, 32, 32)
    transposed = natural_images[:2].transpose(2, 3)
    assert torch.equal(dct_low_pass(unaligned, 15), dct_low_pass(natural_images[:2], 15))
    assert torch.equal(dct_low_pass(transposed, 15), dct_low_pass(transposed.contiguous(), 15))
    assert torch.equal(natural_images, before)


def test_blocks_are_blocks() -> None:
    image = torch.arange(16 * 24, dtype=torch.int64).remainder(251).to(torch.uint8).view(1, 1, 16, 24)
    blocks = to_blocks(image)
    assert blocks.shape == (1, 1, 6, 64)
    assert torch.equal(blocks[0, 0, 4].view(8, 8), image[0, 0, 8:16, 8:16])
    assert torch.equal(from_blocks(blocks, 16, 24), image)


def test_autocast_changes_nothing(natural_images: torch.Tensor) -> None:
    expected = dct_low_pass(natural_images, 50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dct_low_pass(natural_images, 50), expected)


def test_quality_may_be_a_numpy_integer(natural_images: torch.Tensor) -> None:
    assert torch.equal(dct_low_pass(natural_images[:2], np.int64(15)), dct_low_pass(natural_images[:2], 15))


def test_empty_batch() -> None:
    assert dct_low_pass(torch.zeros(0, 3, 8, 8, dtype=torch.uint8), 15).shape == (0, 3, 8, 8)


_TRACED = """
import torch
from shiftcal import dct_low_pass
images = torch.randint(0, 256, (4, 3, 32, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
for options in ({}, {"subsampling": "4:2:0"}):
    compiled = torch.compile(dct_low_pass, fullgraph=True, backend="eager")
    assert torch.equal(compiled(images, 15, **options), dct_low_pass(images, 15, **options)), options
"""


def test_can_be_traced() -> None:
    """In a process of its own: the compiler remembers modules by name, and other tests put theirs in place of them."""
    subprocess.run([sys.executable, "-c", _TRACED], check=True, timeout=120)


def test_constants_stay_on_the_device() -> None:
    device = torch.device("cpu")
    for make, *arguments in [
        (_jpeg._constant, (1.0, 2.0)),
        (_jpeg._all_tables,),
        (_jpeg._dct_matrix,),
        (_jpeg._in_turn, (1.0, 2.0), 3),
    ]:
        assert make(*arguments, device) is make(*arguments, device)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("images", "quality", "message"),
    [
        (torch.zeros(2, 3, 8, 8), 15, "`images` should be uint8. Found `images = torch.float32`"),
        (
            torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
            15,
            "should be of shape .N, 3, H, W.. Found `images = .2, 1, 8, 8.",
        ),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), 15, "Found `images = .3, 8, 8."),
        (
            torch.zeros(2, 3, 8, 8, dtype=torch.uint8),
            0,
            "`quality` should be an integer in 1..100. Found `quality = 0`",
        ),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), 500, "Found `quality = 500`"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), 101, "Found `quality = 101`"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), 15.0, "Found `quality = 15.0`"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([15, 0]), "in 1..100"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([15]), "an int or of shape .2."),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([15.0, 15.0]), "an integer tensor"),
    ],
)
def test_bad_input(images: torch.Tensor, quality: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dct_low_pass(images, quality)


def test_the_chroma_is_doubled_with_its_ends_repeated() -> None:
    units = 16 * torch.eye(3)
    across, down = (
        _jpeg._double(units.view(3, 1, 1, 3))[:, 0, 0],
        _jpeg._double(units.view(3, 1, 3, 1))[..., 0].squeeze(1),
    )
    for found in (across, down):
        assert (found.T / 4).tolist() == [[4, 0, 0], [3, 1, 0], [1, 3, 0], [0, 3, 1], [0, 1, 3], [0, 0, 4]]
    assert _jpeg._double(torch.tensor([[[[0.0, 2.0]]]]))[0, 0, 0].tolist() == [0, 0, 2, 2]


def test_many_images_are_filtered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (7, 3, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    strengths = torch.tensor([15.0, 18.0, 25.0, 15.0, 40.0, 18.0, 25.0])
    seen: list[int] = []

    def flip(part: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        seen.append(len(part))
        return part.flip(-1)

    policy = LowPassPolicy(before=flip)
    whole = policy.prepared(images, strengths, torch.Generator())
    assert torch.equal(whole, dct_low_pass(images.flip(-1), strengths.long()))
    monkeypatch.setattr(filtering, "_PART", 3 * 3 * 16 * 16)
    assert torch.equal(policy.prepared(images, strengths, torch.Generator()), whole)
    assert seen == [7, 3, 3, 1]
    monkeypatch.setattr(filtering, "_PART", 1)
    plain = LowPassPolicy().prepared(images, strengths, torch.Generator())
    assert torch.equal(plain, dct_low_pass(images, strengths.long()))
