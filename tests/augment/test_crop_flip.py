import torch

from shiftcal.augment import crop_flip


def test_every_image_is_a_crop_of_the_padded_one_possibly_mirrored() -> None:
    images = torch.randint(1, 256, (60, 3, 8, 8), dtype=torch.uint8)
    out = crop_flip(images, torch.Generator().manual_seed(0), padding=2)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    seen = set()
    for image, result in zip(padded, out, strict=True):
        matches = [
            (top, left, flip)
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            if torch.equal(result.flip(-1) if flip else result, image[:, top : top + 8, left : left + 8])
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    tops, lefts, flips = (set(values) for values in zip(*seen, strict=True))
    assert tops == lefts == set(range(5))
    assert flips == {False, True}


def test_top_and_left_are_drawn_apart() -> None:
    y, x = torch.meshgrid(torch.arange(1, 9), torch.arange(1, 9), indexing="ij")
    images = (10 * y + x).to(torch.uint8).expand(200, 3, 8, 8)
    centre = crop_flip(images, torch.Generator().manual_seed(0), padding=2)[:, 0, 4, 3:5].int()
    places = set(zip((centre.amax(1) // 10).tolist(), (centre.amin(1) % 10).tolist(), strict=True))
    assert len(places) >= 20


def test_same_generator_same_crops_and_inputs_stay() -> None:
    images = torch.randint(0, 256, (10, 3, 32, 32), dtype=torch.uint8)
    before = images.clone()
    first, second = (crop_flip(images, torch.Generator().manual_seed(s)) for s in (1, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, crop_flip(images, torch.Generator().manual_seed(2)))
    assert torch.equal(images, before)


def test_half_are_mirrored() -> None:
    ramp = torch.arange(32, dtype=torch.uint8).expand(2000, 3, 32, 32)
    out = crop_flip(ramp, torch.Generator().manual_seed(0)).int()
    mirrored = (out[:, 0, 16, 20] < out[:, 0, 16, 12]).float().mean()
    assert 0.45 < mirrored < 0.55
