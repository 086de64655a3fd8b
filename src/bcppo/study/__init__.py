"""Studies: lists of runs as data, and the engines that run what is missing of them.

plan.py     a study: its runs, in memory and as JSON      named.py   the paper's studies, and the smoke study
folder.py   a study's folder: what is there of it         status.py  how far it is, and how long it has still to go
engine.py   what is missing → an engine → retries         child.py   the process in which a run takes place
local.py    an engine: processes on this machine          ray_cluster.py  an engine: tasks on a Ray cluster
commands.py `bcppo study …`                               diagnostics.py  the study `diagnostics` of runs
outcome.py  how a process says what came of a run          evaluate.py, evaluator.py  many more episodes of each run
"""
