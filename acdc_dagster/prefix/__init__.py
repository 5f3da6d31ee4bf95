"""Stage 2, `sorted_requests`: each distinct request once, in prefix order.

Lexicographic order of token sequences is depth-first order of their prefix tree, so a sort and the
common prefix of neighbours (LCP) are the whole tree; no nodes are built.
"""
