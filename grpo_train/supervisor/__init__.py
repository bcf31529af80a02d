"""Runs the stages of a run as separate process trees and keeps ``status.json`` up to date. Torch-free."""
