"""What the records mean: a study's statistics, tables, figures and page. Imports neither torch nor an algorithm."""

from bcppo.report.entries import Problem, StudyError
from bcppo.report.load import StudyRecords, load_study
from bcppo.report.pack import pack_study

__all__ = ["Problem", "StudyError", "StudyRecords", "load_study", "pack_study"]
