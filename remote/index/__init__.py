"""Indexes of a run's logs, made on the box: the log stays there, and what fits on the screen travels.

**For the app.** Requests, replies and what they mean are in :mod:`remote.protocol.logs`. In short:

- ``client.request("series", run=…, metrics=[…], x="step", low=None, high=None, width=120, smoothing=-1)`` answers at
  once. While ``state`` is ``coarse`` the reply shows a part of the rows (``progress`` of the bytes are indexed): draw
  it with that word, and ask again after about 0.5 s, until it is ``whole``.
- ``reply["series"][i]["columns"]`` is a :class:`remote.protocol.logs.Columns` of ``array("d")``, one number per pixel
  column. Pixel columns with ``count`` 0 are empty; one with ``gaps`` has NaN or infinite values. A row with the key
  ``unreadable`` has no columns.
- Live rows: ``client.follow(cursor.path, cursor=reply["cursor"])``. Rows that begin before ``offset`` are in the reply,
  later ones are not, so each row counts once. The average continues as :class:`remote.protocol.rows.SeriesRow` says. A
  weight of 0 has no average yet.
- Ask again after LogRotated of the log, after an event with ``superseded``, and when range, width, axis or smoothing
  change. Rows of ``superseded`` ranges are left out here, and so must be followed rows inside them.
- ``metrics`` names all metrics; ``show_step`` has the logged row that is nearest to an x.
- ``rollout_steps`` is a table of the steps that have completions (several optimizer steps may share one);
  ``rollout_step`` has the samples of the last such step up to the one asked for, without texts, and the prompt of each
  group; ``samples`` has whole rows, by their ``offset``. While ``coarse``, the table has the first steps and the last
  ones, and a step is found all the same.
- With ``folder``, the folder of an evaluated step, they answer from its ``completions.jsonl``: a group is a problem.
- ``search_rollouts`` has pages of about 0.25 s, newest first: pass ``next`` as ``before`` until it is None; to cancel,
  ask for no further page. While ``coarse``, only what is indexed is searched, but a step is searched in whole.
- An error has one of the codes ``no_run``, ``no_step``, ``bad_request`` (a condition), ``bad_path``, ``timeout``,
  ``index_failed`` (retry), ``no_index`` (no folder accepts it) and ``too_large``.

**On the box.** The agent starts one process with the first request (:mod:`remote.index.process`) and passes requests on
(:mod:`remote.agent.index`). These rules hold for an index:

- It *must* give the answers that one made anew from the file would give, after any growth, truncation or replacement
  of the file and any kill of its process. If that is in doubt, it *must* be thrown away.
- A row *must* be one that the gate on the laptop would read. A line that is not *must* be counted, and the others stay.
  A line without its end *must* wait for it.
- The agent *must not* parse a log for it, and *must not* fail with it. Any number of agents *may* use one index.
- Nothing *may* need it: where no folder accepts it, the request is refused, and logs are followed as before.
"""
