"""The command ``benchmark``: what the library costs and gains, beside a loop written by hand in plain PyTorch.

```bash
lit-fednas benchmark round           # a round against the hand-written loop, in the same process
lit-fednas benchmark scale --help    # memory, subnets, layouts, ranks, clients trained together, searches
```

Both measure the machine at hand; run them where nothing else runs.
"""
