/* Load generator for Redis Streams, the peer of our key cells.
 *
 * CONNECTIONS connections, each with a pipeline of XADD commands and one WAIT 1 behind it: a record counts
 * when the replica has it. With a pipeline of 1 it measures round trips one at a time.
 *
 *   redis_streams PORT SIZE CONNECTIONS PIPELINE SECONDS [KEY]
 *
 * prints one JSON object: records, seconds, p50/p99/p99.9 of a pipeline's round trip in microseconds, and its
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
#define SAMPLES_MAX 4000000

struct connection {
    int fd;
    size_t sent;      /* bytes of the pipeline already written */
    int answers;      /* answers still expected */
    int wait_answer;  /* 1 while inside the WAIT's answer line */
    char line[64];
    size_t line_length;
    int bulk_left;    /* bytes of a bulk answer to pass over, with its CR LF */
    double began;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void stop(const char *what) {
    fprintf(stderr, "redis_streams: %s: %s\n", what, strerror(errno));
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

/* One pipeline: PIPELINE XADDs to a capped stream and the WAIT. The cap keeps Redis's memory bounded. */
static char *build(const char *key, int size, int pipeline, size_t *length) {
    char *text = malloc((size_t)pipeline * ((size_t)size + strlen(key) + 160) + 64), *at = text;
    for (int i = 0; i < pipeline; i++) {
        at += sprintf(at,
                      "*8\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$6\r\nMAXLEN\r\n$1\r\n~\r\n$6\r\n200000\r\n$1\r\n*\r\n"
                      "$1\r\nb\r\n$%d\r\n",
                      strlen(key), key, size);
        for (int k = 0; k < size; k++) *at++ = (char)('a' + (i * 31 + k * 7) % 26);
        *at++ = '\r';
        *at++ = '\n';
    }
    at += sprintf(at, "*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n5000\r\n");
    *length = (size_t)(at - text);
    return text;
}

/* Feed answer bytes; returns 1 when the WAIT's answer is complete. */
static int feed(struct connection *c, const char *data, size_t length) {
    int done = 0;
    for (size_t i = 0; i < length; i++) {
        if (c->bulk_left > 0) {
            size_t skip = length - i < (size_t)c->bulk_left ? length - i : (size_t)c->bulk_left;
            c->bulk_left -= (int)skip;
            i += skip - 1;
            if (c->bulk_left == 0) c->answers--;
            continue;
        }
        if (data[i] != '\n') {
            if (c->line_length < sizeof c->line - 1) c->line[c->line_length++] = data[i];
            continue;
        }
        c->line[c->line_length] = 0;
        c->line_length = 0;
        if (c->line[0] == '$') {
            c->bulk_left = atoi(c->line + 1) + 2;
        } else if (c->line[0] == ':') {
            if (atoi(c->line + 1) < 1) { errno = ETIMEDOUT; stop("WAIT: no replica has it"); }
            c->answers--;
            done = 1;
        } else {
            fprintf(stderr, "redis_streams: answer %s\n", c->line);
            exit(1);
        }
    }
    return done && c->answers == 0;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 7) {
        fprintf(stderr, "usage: redis_streams PORT SIZE CONNECTIONS PIPELINE SECONDS [KEY]\n");
        return 64;
    }
    int port = atoi(argv[1]), size = atoi(argv[2]), count = atoi(argv[3]), pipeline = atoi(argv[4]);
    double seconds = atof(argv[5]);
    if (count < 1 || count > CONNECTIONS_MAX || pipeline < 1 || size < 1) return 64;
    size_t length;
    char *text = build(argc == 7 ? argv[6] : "bench", size, pipeline, &length), *buffer = malloc(1 << 20);
    struct connection all[CONNECTIONS_MAX] = {0};
    double *samples = malloc(sizeof(double) * SAMPLES_MAX);
    int poll = epoll_create1(0), samples_count = 0;
    for (int i = 0; i < count; i++) {
        all[i].fd = dial(port);
        all[i].sent = length;
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = (unsigned)i};
        int size_of_buffer = 4 << 20;
        setsockopt(all[i].fd, SOL_SOCKET, SO_SNDBUF, &size_of_buffer, sizeof size_of_buffer);
        if (epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &e) < 0) stop("epoll");
    }
    double start = now(), end = start + seconds, finished = start;
    long records = 0;
    int busy = 0;
    for (int i = 0; i < count; i++) { all[i].sent = 0; all[i].answers = pipeline + 1; all[i].began = start; busy++; }
    struct epoll_event events[CONNECTIONS_MAX];
    for (int first = 1; busy > 0;) {
        int ready = first ? count : epoll_wait(poll, events, CONNECTIONS_MAX, 10000);
        if (ready <= 0) { errno = ETIMEDOUT; stop("no answer within 10 s"); }
        for (int k = 0; k < ready; k++) {
            struct connection *c = &all[first ? (unsigned)k : events[k].data.u32];
            for (;;) {
                int moved = 0;
                while (c->sent < length) {
                    ssize_t n = send(c->fd, text + c->sent, length - c->sent, MSG_DONTWAIT);
                    if (n < 0) { if (errno == EAGAIN) break; stop("send"); }
                    c->sent += (size_t)n;
                }
                for (;;) {
                    ssize_t n = recv(c->fd, buffer, 1 << 20, MSG_DONTWAIT);
                    if (n < 0) { if (errno == EAGAIN) break; stop("recv"); }
                    if (n == 0) { errno = ECONNRESET; stop("recv"); }
                    if (!feed(c, buffer, (size_t)n)) continue;
                    double t = now();
                    records += pipeline;
                    finished = t;
                    if (samples_count < SAMPLES_MAX) samples[samples_count++] = t - c->began;
                    if (t < end) { c->sent = 0; c->answers = pipeline + 1; c->began = t; moved = 1; }
                    else busy--;
                }
                if (!moved) break;
            }
        }
        first = 0;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    qsort(samples, (size_t)samples_count, sizeof(double), ascending);
    double cpu = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6 +
                 (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec * 1e-6;
    printf("{\"records\": %ld, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"client_cpu_seconds\": %.4f}\n",
           records, finished - start, samples[samples_count / 2] * 1e6, samples[(int)(samples_count * 0.99)] * 1e6,
           samples[(int)(samples_count * 0.999)] * 1e6, cpu);
    return 0;
}
