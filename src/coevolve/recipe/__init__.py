"""Recipes: schema, components, overrides, the plan of a dry run."""
