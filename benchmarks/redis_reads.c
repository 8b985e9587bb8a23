/* Reader of a Redis stream, the peer of our reading cells.
 *
 * CONNECTIONS connections read the stream KEY from its start, again and again: each asks for COUNT entries after
 * the last one it has (XRANGE), takes the answer apart down to each entry's id and length, and asks again. So the
 * server always has a question waiting, and what arrives is looked at but not copied.
 *
 *   redis_reads PORT KEY COUNT CONNECTIONS SECONDS
 *
 * prints one JSON object: records, bytes of their values, seconds, p50/p99 of an answer in microseconds, and its
 * own CPU seconds. Loopback only; ends by itself after SECONDS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64
#define SAMPLES_MAX 1000000
#define ROOM (16 << 20)

struct connection {
    int fd;
    char *room;       /* the answer as far as it has arrived */
    size_t held, at;  /* bytes in it, bytes of it taken apart */
    long left;        /* entries of the answer not taken apart yet; -1: its first line is missing */
    char last[64];    /* id of the last entry */
    double began;
};

static long records, bytes;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void stop(const char *what) {
    fprintf(stderr, "redis_reads: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int dial(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0) stop("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void ask(struct connection *c, const char *key, int count) {
    char text[256], from[80], number[16];
    snprintf(from, sizeof from, "%s%s", c->last[0] ? "(" : "", c->last[0] ? c->last : "-");
    snprintf(number, sizeof number, "%d", count);
    int n = snprintf(text, sizeof text,
                     "*6\r\n$6\r\nXRANGE\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n$1\r\n+\r\n$5\r\nCOUNT\r\n$%zu\r\n%s\r\n",
                     strlen(key), key, strlen(from), from, strlen(number), number);
    c->held = c->at = 0;
    c->left = -1;
    c->began = now();
    if (send(c->fd, text, (size_t)n, 0) != n) stop("send");
}

/* The number in a line that begins with KIND at *at; moves past it. 0: it is not whole yet. */
static int line(const struct connection *c, size_t *at, char kind, long *value) {
    const char *end = memchr(c->room + *at, '\n', c->held - *at);
    if (!end) return 0;
    if (c->room[*at] != kind) {
        fprintf(stderr, "redis_reads: answer %.*s\n", (int)(end - c->room - (long)*at), c->room + *at);
        exit(1);
    }
    *value = atol(c->room + *at + 1);
    *at = (size_t)(end - c->room) + 1;
    return 1;
}

static int bulk(const struct connection *c, size_t *at, long *length, const char **text) {
    if (!line(c, at, '$', length) || c->held - *at < (size_t)*length + 2) return 0;
    *text = c->room + *at;
    *at += (size_t)*length + 2;
    return 1;
}

/* Takes entries apart; returns 1 when the answer is complete. */
static int feed(struct connection *c, int *empty) {
    if (c->left < 0) {
        if (!line(c, &c->at, '*', &c->left)) return 0;
        *empty = c->left == 0;
    }
    while (c->left > 0) {
        size_t at = c->at;
        long two, length, fields, value;
        const char *id, *text;
        if (!line(c, &at, '*', &two) || !bulk(c, &at, &length, &id) || !line(c, &at, '*', &fields)) return 0;
        value = 0;
        for (long i = 0; i < fields; i++)
            if (!bulk(c, &at, &value, &text)) return 0;
        memcpy(c->last, id, (size_t)length);
        c->last[length] = 0;
        c->at = at;
        c->left--;
        records++;
        bytes += value;
    }
    return 1;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: redis_reads PORT KEY COUNT CONNECTIONS SECONDS\n"); return 64; }
    int port = atoi(argv[1]), each = atoi(argv[3]), count = atoi(argv[4]);
    const char *key = argv[2];
    double seconds = atof(argv[5]);
    if (count < 1 || count > CONNECTIONS_MAX || each < 1 || strlen(key) > 64) return 64;
    struct connection all[CONNECTIONS_MAX] = {0};
    double *samples = malloc(sizeof(double) * SAMPLES_MAX);
    int poll = epoll_create1(0), samples_count = 0, empties = 0;
    for (int i = 0; i < count; i++) {
        all[i].fd = dial(port);
        all[i].room = malloc(ROOM);
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = (unsigned)i};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &e) < 0) stop("epoll");
    }
    double start = now(), end = start + seconds, finished = start;
    for (int i = 0; i < count; i++) ask(&all[i], key, each);
    struct epoll_event events[CONNECTIONS_MAX];
    while (finished < end) {
        int ready = epoll_wait(poll, events, CONNECTIONS_MAX, 10000), empty = 0;
        if (ready <= 0) { errno = ETIMEDOUT; stop("no answer within 10 s"); }
        for (int k = 0; k < ready; k++) {
            struct connection *c = &all[events[k].data.u32];
            ssize_t n = recv(c->fd, c->room + c->held, ROOM - c->held, MSG_DONTWAIT);
            if (n < 0 && errno == EAGAIN) continue;
            if (n <= 0) { errno = n ? errno : ECONNRESET; stop("recv"); }
            c->held += (size_t)n;
            if (!feed(c, &empty)) continue;
            finished = now();
            if (empty) {
                c->last[0] = 0;
                if (++empties > 2 * count && !records) { fprintf(stderr, "redis_reads: %s is empty\n", key); return 1; }
            } else if (samples_count < SAMPLES_MAX) {
                samples[samples_count++] = finished - c->began;
            }
            ask(c, key, each);
        }
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    qsort(samples, (size_t)samples_count, sizeof(double), ascending);
    double cpu = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6 +
                 (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec * 1e-6;
    printf("{\"records\": %ld, \"bytes\": %ld, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
           "\"client_cpu_seconds\": %.4f}\n",
           records, bytes, finished - start, samples[samples_count / 2] * 1e6,
           samples[(int)(samples_count * 0.99)] * 1e6, cpu);
    return 0;
}
