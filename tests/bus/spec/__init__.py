"""The protocol as a pure model: no Redis, no bytes; one function an act, in the words of the wire.

`world` has the nouns, `leases` who may hold what, `groups` how a group turns, and `work`, `trainer`
and `evaluation` the acts of the services. An act changes the world at one moment and replies in one
word, or with what it hands out.
"""
