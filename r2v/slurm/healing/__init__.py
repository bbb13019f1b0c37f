"""Healing: failures classified and answered, and chains reconciled with the queue."""
