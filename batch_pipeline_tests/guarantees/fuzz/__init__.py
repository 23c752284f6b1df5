"""Bad bytes by the thousand: which ones, what reads them, and what is asked of what comes out.

`plan` lists all targets; `harness` knows how inputs are spoiled, looked at and watched.
"""
