"""Swarm distribution of base weights: chunk choice, peers, tracker."""
