"""Mixers: each worker trains a model of its own, by gossip or in local rounds."""

from jaxcomp.mixers import gossip as gossip
from jaxcomp.mixers import local as local
