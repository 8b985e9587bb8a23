/* CRC-32 (IEEE, of record bodies) and CRC-32C (Castagnoli, of batches and frames).
 *
 * Both are reflected CRCs over the same bit order, so one set of routines serves both, with other
 * constants: carry-less multiplication where the CPU has it (512 bits wide with VPCLMULQDQ, without
 * a rest with VBMI2, else 128), the crc32 instruction for short CRC-32C, tables of 8 bytes a step everywhere. What runs is
 * decided once, by twinlog_crc_setup(), from what the CPU says.
 *
 * Not here: anything about records.
 *
 * Sources: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel,
 * 2009) for folding and the constants x^n mod P; Kounavis and Berry (Intel, 2005) for the tables.
 */

#ifndef TWINLOG_CRC_H
#define TWINLOG_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if (defined(__x86_64__)) && (defined(__GNUC__) || defined(__clang__))
#define TWINLOG_X86 1
#include <immintrin.h>
#else
#define TWINLOG_X86 0
#endif

typedef struct {
    uint32_t polynomial;      /* reflected */
    uint64_t fold2048[2];     /* x^(2048+32), x^(2048-32) mod P, reflected, shifted by one */
    uint64_t fold512[2];
    uint64_t fold384[2];
    uint64_t fold256[2];
    uint64_t fold128[2];
    uint64_t quarters[8];     /* the last three once more, and none */
    uint64_t fold64;
    uint64_t barrett[2];      /* P and x^64 / P, reflected */
} twinlog_crc_kind;

static const twinlog_crc_kind twinlog_ieee = {
    0xEDB88320u,
    {0x11542778a, 0x1322d1430}, {0x154442bd4, 0x1c6e41596}, {0x03db1ecdc, 0x174359406},
    {0x0f1da05aa, 0x15a546366}, {0x1751997d0, 0x0ccaa009e},
    {0x03db1ecdc, 0x174359406, 0x0f1da05aa, 0x15a546366, 0x1751997d0, 0x0ccaa009e, 0, 0},
    0x163cd6124,
    {0x1db710641, 0x1f7011641},
};

static const twinlog_crc_kind twinlog_castagnoli = {
    0x82F63B78u,
    {0x0dcb17aa4, 0x0b9e02b86}, {0x0740eef02, 0x09e4addf8}, {0x01c291d04, 0x1d82c63da},
    {0x1384aa63a, 0x0ba4fc28e}, {0x0f20c0dfe, 0x14cd00bd6},
    {0x01c291d04, 0x1d82c63da, 0x1384aa63a, 0x0ba4fc28e, 0x0f20c0dfe, 0x14cd00bd6, 0, 0},
    0x0dd45aab8,
    {0x105ec76f1, 0x0dea713f1},
};

static uint32_t twinlog_ieee_table[8][256];
static uint32_t twinlog_castagnoli_table[8][256];
static int twinlog_has_clmul = 0;
static int twinlog_has_clmul512 = 0;
static int twinlog_has_expand = 0;
static int twinlog_has_crc32c = 0;

static void twinlog_crc_fill(uint32_t table[8][256], uint32_t polynomial) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t value = n;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? (value >> 1) ^ polynomial : value >> 1;
        table[0][n] = value;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t n = 0; n < 256; n++)
            table[k][n] = (table[k - 1][n] >> 8) ^ table[0][table[k - 1][n] & 0xFF];
}

/* Fill the tables and look at the CPU; once, when the module is loaded. */
static void twinlog_crc_setup(void) {
    twinlog_crc_fill(twinlog_ieee_table, twinlog_ieee.polynomial);
    twinlog_crc_fill(twinlog_castagnoli_table, twinlog_castagnoli.polynomial);
#if TWINLOG_X86
    __builtin_cpu_init();
    twinlog_has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    twinlog_has_crc32c = __builtin_cpu_supports("sse4.2") != 0;
    twinlog_has_clmul512 = twinlog_has_clmul && __builtin_cpu_supports("vpclmulqdq") &&
                           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
    twinlog_has_expand = twinlog_has_clmul512 && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vbmi2");
#endif
}

/* 0 tables only, 1 crc32 instruction and 128-bit folding, 2 512-bit folding too, 3 all; for tests
   of every path. */
static void twinlog_crc_limit(int level) {
    twinlog_crc_setup();
    if (level < 3)
        twinlog_has_expand = 0;
    if (level < 2)
        twinlog_has_clmul512 = 0;
    if (level < 1)
        twinlog_has_clmul = twinlog_has_crc32c = 0;
}

static uint32_t twinlog_crc_tables(
    uint32_t table[8][256], uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                       (uint32_t)p[3] << 24;
        low ^= crc;
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^
              table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--)
        crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xFF];
    return crc;
}

#if TWINLOG_X86

__attribute__((target("sse4.2"))) static uint32_t twinlog_crc32c_instruction(
    uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t wide = crc, word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    while (n--)
        crc = _mm_crc32_u8(crc, *p++);
    return crc;
}

#define TWINLOG_FOLD128(x, k, data)                                                       \
    _mm_xor_si128(                                                                        \
        _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), \
        data)

/* Reduce 128 bits to the CRC: fold by 64, by 32, then Barrett. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t twinlog_crc_reduce(
    const twinlog_crc_kind *kind, __m128i x) {
    const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i k = _mm_loadu_si128((const __m128i *)kind->fold128);
    __m128i y = _mm_clmulepi64_si128(x, k, 0x10);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), y);
    k = _mm_loadl_epi64((const __m128i *)&kind->fold64);
    y = _mm_srli_si128(x, 4);
    x = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low), k, 0x00), y);
    k = _mm_loadu_si128((const __m128i *)kind->barrett);
    y = _mm_clmulepi64_si128(_mm_and_si128(x, low), k, 0x10);
    y = _mm_clmulepi64_si128(_mm_and_si128(y, low), k, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, y), 1);
}

/* n >= 64; reads whole 16-byte blocks and says how many bytes it took. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t twinlog_crc_fold(
    const twinlog_crc_kind *kind, uint32_t crc, const uint8_t *p, size_t n, size_t *taken) {
    const uint8_t *start = p;
    const __m128i *v = (const __m128i *)p;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(v), _mm_cvtsi32_si128((int)crc));
    __m128i b = _mm_loadu_si128(v + 1);
    __m128i c = _mm_loadu_si128(v + 2);
    __m128i d = _mm_loadu_si128(v + 3);
    __m128i k = _mm_loadu_si128((const __m128i *)kind->fold512);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        v = (const __m128i *)p;
        a = TWINLOG_FOLD128(a, k, _mm_loadu_si128(v));
        b = TWINLOG_FOLD128(b, k, _mm_loadu_si128(v + 1));
        c = TWINLOG_FOLD128(c, k, _mm_loadu_si128(v + 2));
        d = TWINLOG_FOLD128(d, k, _mm_loadu_si128(v + 3));
    }
    k = _mm_loadu_si128((const __m128i *)kind->fold128);
    b = TWINLOG_FOLD128(a, k, b);
    c = TWINLOG_FOLD128(b, k, c);
    d = TWINLOG_FOLD128(c, k, d);
    for (; n >= 16; p += 16, n -= 16)
        d = TWINLOG_FOLD128(d, k, _mm_loadu_si128((const __m128i *)p));
    *taken = (size_t)(p - start);
    return twinlog_crc_reduce(kind, d);
}

#define TWINLOG_FOLD512(x, k, data)                                                   \
    _mm512_ternarylogic_epi64(                                                        \
        _mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11),   \
        data, 0x96)
#define TWINLOG_LOAD512(at) _mm512_loadu_si512((const void *)(at))
#define TWINLOG_KEY512(pair) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(pair)))

/* n >= 256; otherwise as twinlog_crc_fold. */
__attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.1"))) static uint32_t
twinlog_crc_fold_wide(
    const twinlog_crc_kind *kind, uint32_t crc, const uint8_t *p, size_t n, size_t *taken) {
    const uint8_t *start = p;
    __m512i first = _mm512_inserti32x4(
        _mm512_setzero_si512(), _mm_cvtsi32_si128((int)crc), 0);
    __m512i a = _mm512_xor_si512(TWINLOG_LOAD512(p), first);
    __m512i b = TWINLOG_LOAD512(p + 64);
    __m512i c = TWINLOG_LOAD512(p + 128);
    __m512i d = TWINLOG_LOAD512(p + 192);
    __m512i k = TWINLOG_KEY512(kind->fold2048);
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = TWINLOG_FOLD512(a, k, TWINLOG_LOAD512(p));
        b = TWINLOG_FOLD512(b, k, TWINLOG_LOAD512(p + 64));
        c = TWINLOG_FOLD512(c, k, TWINLOG_LOAD512(p + 128));
        d = TWINLOG_FOLD512(d, k, TWINLOG_LOAD512(p + 192));
    }
    k = TWINLOG_KEY512(kind->fold512);
    b = TWINLOG_FOLD512(a, k, b);
    c = TWINLOG_FOLD512(b, k, c);
    d = TWINLOG_FOLD512(c, k, d);
    for (; n >= 64; p += 64, n -= 64)
        d = TWINLOG_FOLD512(d, k, TWINLOG_LOAD512(p));
    __m128i x = _mm512_extracti32x4_epi32(d, 3);
    x = TWINLOG_FOLD128(
        _mm512_castsi512_si128(d), _mm_loadu_si128((const __m128i *)kind->fold384), x);
    x = TWINLOG_FOLD128(
        _mm512_extracti32x4_epi32(d, 1), _mm_loadu_si128((const __m128i *)kind->fold256), x);
    __m128i k1 = _mm_loadu_si128((const __m128i *)kind->fold128);
    x = TWINLOG_FOLD128(_mm512_extracti32x4_epi32(d, 2), k1, x);
    for (; n >= 16; p += 16, n -= 16)
        x = TWINLOG_FOLD128(x, k1, _mm_loadu_si128((const __m128i *)p));
    *taken = (size_t)(p - start);
    return twinlog_crc_reduce(kind, x);
}

/* n >= 4, all of it: the bytes are taken as if zeros stood before them up to a whole number of
   64-byte blocks, which changes no CRC, so nothing is left over for tables. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq,pclmul,sse4.1"))) static
uint32_t twinlog_crc_padded(
    const twinlog_crc_kind *kind, uint32_t crc, const uint8_t *p, size_t n) {
    const size_t head = (n - 1) % 64 + 1;
    const __m512i state = _mm512_inserti32x4(
        _mm512_setzero_si512(), _mm_cvtsi32_si128((int)crc), 0);
    __m512i d = _mm512_xor_si512(
        _mm512_maskz_loadu_epi8(~(uint64_t)0 >> (64 - head), p), state);
    d = _mm512_maskz_expand_epi8(~(uint64_t)0 << (64 - head), d);
    p += head;
    n -= head;
    if (n) {
        /* of a head shorter than the state, the state's rest goes to the next block */
        __m512i next = TWINLOG_LOAD512(p);
        if (head < 4) {
            const __m128i rest = _mm_cvtsi32_si128((int)(crc >> 8 * head));
            next = _mm512_xor_si512(next, _mm512_inserti32x4(_mm512_setzero_si512(), rest, 0));
        }
        __m512i k = TWINLOG_KEY512(kind->fold512);
        if (n >= 192) {
            __m512i a = d, b = next, c = TWINLOG_LOAD512(p + 64);
            d = TWINLOG_LOAD512(p + 128);
            const __m512i far = TWINLOG_KEY512(kind->fold2048);
            for (p += 192, n -= 192; n >= 256; p += 256, n -= 256) {
                a = TWINLOG_FOLD512(a, far, TWINLOG_LOAD512(p));
                b = TWINLOG_FOLD512(b, far, TWINLOG_LOAD512(p + 64));
                c = TWINLOG_FOLD512(c, far, TWINLOG_LOAD512(p + 128));
                d = TWINLOG_FOLD512(d, far, TWINLOG_LOAD512(p + 192));
            }
            b = TWINLOG_FOLD512(a, k, b);
            c = TWINLOG_FOLD512(b, k, c);
            d = TWINLOG_FOLD512(c, k, d);
        } else {
            d = TWINLOG_FOLD512(d, k, next);
            p += 64;
            n -= 64;
        }
        for (; n; p += 64, n -= 64)
            d = TWINLOG_FOLD512(d, k, TWINLOG_LOAD512(p));
    }
    /* fold512's neighbours for three quarters at once; the last one stays as it is */
    const __m512i keys = _mm512_loadu_si512((const void *)kind->quarters);
    __m512i folded = _mm512_xor_si512(
        _mm512_clmulepi64_epi128(d, keys, 0x00), _mm512_clmulepi64_epi128(d, keys, 0x11));
    folded = _mm512_mask_mov_epi64(folded, 0xC0, d);
    __m256i half = _mm256_xor_si256(
        _mm512_castsi512_si256(folded), _mm512_extracti64x4_epi64(folded, 1));
    return twinlog_crc_reduce(
        kind, _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

static uint32_t twinlog_crc_blocks(
    const twinlog_crc_kind *kind, uint32_t crc, const uint8_t *p, size_t n, size_t *taken) {
    if (n >= 256 && twinlog_has_clmul512)
        return twinlog_crc_fold_wide(kind, crc, p, n, taken);
    return twinlog_crc_fold(kind, crc, p, n, taken);
}

#endif

/* CRC-32 (IEEE) of n bytes, continuing from crc. */
static uint32_t twinlog_crc32(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
#if TWINLOG_X86
    if (n >= 16 && twinlog_has_expand)
        return ~twinlog_crc_padded(&twinlog_ieee, crc, p, n);
    if (n >= 64 && twinlog_has_clmul) {
        size_t taken;
        crc = twinlog_crc_blocks(&twinlog_ieee, crc, p, n, &taken);
        p += taken;
        n -= taken;
    }
#endif
    return ~twinlog_crc_tables(twinlog_ieee_table, crc, p, n);
}

/* CRC-32C (Castagnoli) of n bytes, continuing from crc. */
static uint32_t twinlog_crc32c(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
#if TWINLOG_X86
    if (n >= 256 && twinlog_has_clmul) {
        size_t taken;
        crc = twinlog_crc_blocks(&twinlog_castagnoli, crc, p, n, &taken);
        p += taken;
        n -= taken;
    }
    if (twinlog_has_crc32c)
        return ~twinlog_crc32c_instruction(crc, p, n);
#endif
    return ~twinlog_crc_tables(twinlog_castagnoli_table, crc, p, n);
}

#endif
