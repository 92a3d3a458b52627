"""Writes 1 GiB in order and syncs it, four times; the first time mostly into pages that nobody had before.

usage: long_file.py DIR   -> MiB/s of each
"""
import os,sys,time
path,block,rates=f"{sys.argv[1]}/long",bytearray(os.urandom(1<<20)),[]
for _ in range(4):
    file=os.open(path,os.O_CREAT|os.O_WRONLY|os.O_TRUNC)
    began=time.monotonic()
    for number in range(1024):
        block[:8]=number.to_bytes(8,'little')  # no two are the same
        os.write(file,block)
    os.fsync(file)
    rates.append(1024/(time.monotonic()-began))
    os.close(file); os.system(f"sync -f '{path}'"); os.unlink(path)
print(sys.argv[1],[round(rate) for rate in rates])
