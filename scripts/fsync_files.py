"""Files of 4 KiB, each synced before the next: files a second.

usage: fsync_files.py DIR THREADS FILES
"""
import os,shutil,sys,threading,time
place,threads,files=sys.argv[1],int(sys.argv[2]),int(sys.argv[3])
root=f"{place}/fsync-{os.getpid()}"
data=os.urandom(4096)
def write(thread):
    for number in range(thread,files,threads):
        file=os.open(f"{root}/{thread}/{number}",os.O_CREAT|os.O_EXCL|os.O_WRONLY)
        os.write(file,data)
        os.fsync(file)
        os.close(file)
for thread in range(threads): os.makedirs(f"{root}/{thread}")
os.sync()
workers=[threading.Thread(target=write,args=(thread,)) for thread in range(threads)]
began=time.monotonic()
for worker in workers: worker.start()
for worker in workers: worker.join()
print(f"{place:<40} {threads:>2} threads {files/(time.monotonic()-began):>8.0f}/s")
shutil.rmtree(root)
