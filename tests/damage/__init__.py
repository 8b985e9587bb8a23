"""Every kind of file of a store, damaged in every way, opened again and compared with what it was.

python -m tests.damage --cases 0:10000            the full run
python -m tests.damage --case 4711                one case, with its story
python -m tests.damage --cases 0:10000 --write    and the table in docs/damage.md
"""
