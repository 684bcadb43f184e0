"""Speech: sound to features, recordings to windows, tokens to segments.

A recording goes one way. ``audio.py`` reads it. ``listening.py`` has what a checkpoint says of
features and special tokens. ``following.py`` follows a recording window by window, as its
timestamps say, and ``overlapping.py`` cuts it at once into windows that overlap. Both hand windows
to ``windows.py``, which decodes them by specdec's own loop, and get tokens, of which
``segments.py`` makes segments. ``transcript.py`` is what users get.
"""
