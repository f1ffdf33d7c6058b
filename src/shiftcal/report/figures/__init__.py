"""Figures for papers and pages, from records and small arrays alone; one file each, its data and its drawing apart."""

from shiftcal.report.figures.canvas import colour_of, save
from shiftcal.report.figures.reliability import reliability_figure
from shiftcal.report.figures.severity import severity_figure
from shiftcal.report.figures.sheet import contact_sheet

__all__ = ["colour_of", "contact_sheet", "reliability_figure", "save", "severity_figure"]
