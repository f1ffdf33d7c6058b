"""Write docs/api.md, the reference of the library, from the public names of its modules.

python docs/make_api.py
"""

import importlib
from pathlib import Path

PATH = Path(__file__).with_name("api.md")
# Modules whose public names are listed, with a title each.
MODULES = {
    "shiftcal.gradients": "Gradients: several losses, one gradient",
    "shiftcal.filtering": "Filters",
    "shiftcal.losses": "Losses",
    "shiftcal.augment": "Augmentations",
    "shiftcal.training.averaging": "An average of the weights",
    "shiftcal.metrics": "Metrics",
    "shiftcal.calibrators": "Calibrators",
    "shiftcal.conformal": "Conformal sets",
    "shiftcal.shifts.corruptions": "Corruptions",
    "shiftcal.methods": "Methods",
    "shiftcal.auditing.audit": "Audits",
}
# Modules that hold more than what users call.
NAMES = {
    "shiftcal.gradients": "rectified_backward rectify GradientPair ConstraintMomentum gather add ignore pcgrad cagrad",
    "shiftcal.filtering": "dct_low_pass fft_low_pass",
    "shiftcal.augment": "Perturbation augmix augmix_loss mixup mixup_loss crop_flip swap_amplitude swap_high_band",
    "shiftcal.shifts.corruptions": "corrupt",
    "shiftcal.methods": "Method Loss LowPass Perturb Constraint find",
}
_HEAD = """# Library

Made by `python docs/make_api.py` from the public names. Losses and calibrators take logits, metrics take probabilities;
metrics are fractions. Tensors everywhere; NumPy arrays and lists in metrics and calibrators too. Names at the top,
`from shiftcal import …`: {top}.
"""
_OPTIONS = "    options: {show_root_heading: true, show_root_full_path: false, show_root_toc_entry: true}\n"


def reference() -> str:
    """Write the whole document."""
    import shiftcal

    parts = [_HEAD.format(top=", ".join(f"`{name}`" for name in sorted(shiftcal.__all__) if not name.startswith("_")))]
    for name, title in MODULES.items():
        parts.append(f"## {title}\n\nIn `{name}`.\n")
        parts += [f"::: {path}\n{_OPTIONS}" for path in _members(name)]
    return "\n".join(parts)


def _members(module_name: str) -> list[str]:
    """List the classes and functions of a module by the place where they are defined."""
    module = importlib.import_module(module_name)
    names = NAMES[module_name].split() if module_name in NAMES else getattr(module, "__all__", vars(module))
    found = []
    for name in names:
        member = getattr(module, name)
        own = getattr(member, "__module__", "")
        if (
            not name.startswith("_")
            and callable(member)
            and own.startswith(module_name)
            and getattr(member, "__qualname__", None) == name
        ):
            found.append(f"{own}.{name}")
    return found


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
