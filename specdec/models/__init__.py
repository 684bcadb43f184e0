"""Models: how a checkpoint becomes a step. Every family of Transformers takes this one way.

1. A family (``specdec.checkpoints.families``) reads config.json as a
   :class:`~specdec.models.transformer.config.TransformerConfig`: a decoder's and perhaps an
   encoder's :class:`~specdec.models.transformer.config.Stack`, with positions and norms. It names
   each parameter of ``transformer/tree.py`` in the files.
2. ``transformer/packing.py`` fuses and stores these parameters (``packed.py``) as a step reads them
   fastest: for the layout of a CPU's products or of XLA's (``products``), cut over a mesh
   (``partitioning.py``, ``placing.py``), perhaps in few bits.
3. :class:`~specdec.models.transformer.model.TransformerModel` is the loop's
   :class:`~specdec.models.base.Model`. ``start`` encodes a text and prefills the cache
   (``cache.py``). ``extend`` embeds a block's tokens, pads them for the device (``filler.py``),
   asks ``views.py`` what each of them sees, and goes through the layers: norm, part
   (``parts.py``: attention, cross-attention, feed-forward), residual. ``logits`` is the last
   product, and ``commit`` keeps some of the block.

``transformer/network.py``, of ``blocks.py``, is the same network in Flax: it is trained, and scores
whole texts. ``arithmetic.py`` has what both compute. ``t5``, ``gpt``, ``bart`` and ``rotary`` make
configs of their families' own settings. ``heads``, ``eagle`` and ``look_ahead`` draft from a
target's states; ``toy.py`` is a table for tests.
"""
