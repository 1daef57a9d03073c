"""Tests of files behind URLs."""
