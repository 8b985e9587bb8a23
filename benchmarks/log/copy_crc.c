/* A plain memory-copy-plus-CRC loop, the measure of the append path (benchmarks/log/append_path.py).

   copy_crc FILE SECTION_BYTES FILE_BYTES SECONDS

   The loop: memcpy one section of SECTION_BYTES behind the last into a mapped file of FILE_BYTES
   whose pages are present and writable, then one CRC-32C over those bytes in the file; at the end
   of the file it begins again at its start. Nothing is checked, numbered or stamped. Printed: bytes
   a second of CPU time, once with the processor's CRC instruction, eight bytes at a time (the plain
   way), once with the project's folding CRC (twinlog/kernels/crc.h). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "crc.h"

static uint32_t plain(uint32_t crc, const uint8_t *p, size_t n) {
#if defined(__SSE4_2__)
    uint64_t value = (uint32_t)~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        value = __builtin_ia32_crc32di(value, word);
    }
    uint32_t rest = (uint32_t)value;
    for (; n; p++, n--) rest = __builtin_ia32_crc32qi(rest, *p);
    return ~rest;
#else
    return twinlog_crc32c(crc, p, n);
#endif
}

static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

typedef uint32_t (*Crc)(uint32_t, const uint8_t *, size_t);

static double run(Crc crc, uint8_t *file, long size, const uint8_t *section, long length,
                  double seconds) {
    static volatile uint32_t sink;
    double begun = cpu(), spent;
    long done = 0, at = 0;
    do {
        for (int turn = 0; turn < 64; turn++) {
            if (at + length > size) at = 0;
            memcpy(file + at, section, length);
            sink = crc(0, file + at, length);
            at += length;
            done += length;
        }
        spent = cpu() - begun;
    } while (spent < seconds);
    return done / spent;
}

int main(int count, char **words) {
    if (count != 5) return fprintf(stderr, "copy_crc FILE SECTION FILE_BYTES SECONDS\n"), 64;
    long length = atol(words[2]), size = atol(words[3]);
    int file = open(words[1], O_RDWR | O_CREAT, 0644);
    if (file < 0 || posix_fallocate(file, 0, size)) return perror(words[1]), 1;
    uint8_t *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint8_t *section = malloc(length);
    if (map == MAP_FAILED || !section) return perror("memory"), 1;
    madvise(map, size, MADV_HUGEPAGE);
    memset(map, 0, size);
    for (long at = 0; at < length; at++) section[at] = (uint8_t)(at * 31 + (at >> 8));
    twinlog_crc_setup();
    double seconds = atof(words[4]);
    double instruction = run(plain, map, size, section, length, seconds);
    double folding = run(twinlog_crc32c, map, size, section, length, seconds);
    printf("{\"instruction\": %.0f, \"folding\": %.0f}\n", instruction, folding);
    unlink(words[1]);
    return 0;
}
