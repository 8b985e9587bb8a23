/* What a fresh page of a log file costs, by the way the bytes get into it.

   cc -O2 -o /tmp/fresh_pages benchmarks/log/fresh_pages.c && /tmp/fresh_pages FILE [MIB [ROUNDS]]

   Every way writes MIB (128) of a new, fully allocated file in pieces of 256 KiB, ROUNDS (5) times
   in turn; the file is removed in between. Printed: CPU microseconds for each MiB, of preparing (in
   a store: a thread's work) and of writing (the writer's), median and maximum. The maximum shows
   memory that the host has to find first, the median memory that was freed a moment ago. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PIECE (256L << 10)
#define STEP (4L << 20)
#define ROUNDS_MAX 99
enum { FAULTS, TOUCHED, HUGE, PWRITE, REUSED, WAYS };
static const char *NAMES[WAYS] = {
    "mapping, faults while copying", "mapping, touched ahead", "mapping, touched ahead, huge pages",
    "pwrite, then mapped and read", "mapping of pages just let go, huge pages",
};

static double cpu(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_utime.tv_sec + use.ru_stime.tv_sec
        + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void check(int ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

static int make(const char *path, long size) {
    unlink(path);
    int file = open(path, O_RDWR | O_CREAT, 0644);
    check(file >= 0 && posix_fallocate(file, 0, size) == 0, path);
    return file;
}

static void run(const char *path, int way, long size, double found[2]) {
    static char source[PIECE];
    memset(source, 'x', sizeof source);
    int file = make(path, size);
    char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(map != MAP_FAILED, "mmap");
    if (way == HUGE || way == REUSED) madvise(map, size, MADV_HUGEPAGE);
    if (way == REUSED) { /* as much again was written before; it goes as the new pages come */
        for (long at = 0; at < size; at += STEP) madvise(map + at, STEP, MADV_POPULATE_WRITE);
        check(fdatasync(file) == 0, "fdatasync");
        madvise(map, size, MADV_DONTNEED);
        posix_fadvise(file, 0, size, POSIX_FADV_DONTNEED);
    }
    double begun = cpu();
    if (way == TOUCHED || way == HUGE || way == REUSED)
        for (long at = 0; at < size; at += STEP)
            check(madvise(map + at, STEP, MADV_POPULATE_WRITE) == 0, "populate");
    double prepared = cpu();
    for (long at = 0; at < size; at += PIECE) {
        if (way == PWRITE) check(pwrite(file, source, PIECE, at) == PIECE, "pwrite");
        else memcpy(map + at, source, PIECE);
    }
    volatile char byte;
    for (long at = 0; at < size; at += 4096) byte = map[at];
    (void)byte;
    double mib = size / (double)(1 << 20);
    found[0] = (prepared - begun) * 1e6 / mib;
    found[1] = (cpu() - prepared) * 1e6 / mib;
    munmap(map, size);
    close(file);
    unlink(path);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    static double found[WAYS][2][ROUNDS_MAX];
    if (count < 2) return fprintf(stderr, "fresh_pages FILE [MIB [ROUNDS]]\n"), 64;
    long size = (count > 2 ? atol(words[2]) : 128) << 20;
    int rounds = count > 3 ? atoi(words[3]) : 5;
    check(size >= STEP && rounds > 0 && rounds <= ROUNDS_MAX, "sizes");
    for (int round = 0; round < rounds; round++)
        for (int way = 0; way < WAYS; way++) {
            double one[2];
            run(words[1], way, size, one);
            for (int part = 0; part < 2; part++) found[way][part][round] = one[part];
        }
    printf("| way | prepare, us CPU/MiB, median (max) | write, median (max) |\n|---|---|---|\n");
    for (int way = 0; way < WAYS; way++) {
        for (int part = 0; part < 2; part++)
            qsort(found[way][part], rounds, sizeof(double), by_value);
        printf("| %s | %.0f (%.0f) | %.0f (%.0f) |\n", NAMES[way], found[way][0][rounds / 2],
               found[way][0][rounds - 1], found[way][1][rounds / 2], found[way][1][rounds - 1]);
    }
    return 0;
}
