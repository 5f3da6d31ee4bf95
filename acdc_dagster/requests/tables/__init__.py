"""Tables as a source: which rows there are, in which partition, and what their ids are."""
