/* Records as TensorFlow frames them: length, its checksum, bytes, their checksum; the bytes are an Event of protocol buffers. */
#include "events.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

typedef struct {
    uint8_t at[1024];
    size_t n;
} message;

/* CRC-32C (Castagnoli), bit by bit: an event has a few hundred bytes. */
static uint32_t crc(const uint8_t *p, size_t n)
{
    uint32_t c = ~0u;
    while (n--) {
        c ^= *p++;
        for (int i = 0; i < 8; i++) c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
    }
    c = ~c;
    return (c >> 15 | c << 17) + 0xa282ead8u; /* as the format masks it */
}

static void put_fixed(message *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes && m->n < sizeof m->at; i++, value >>= 8) m->at[m->n++] = (uint8_t)value;
}

static void put_varint(message *m, uint64_t value)
{
    for (; value > 127; value >>= 7) put_fixed(m, (value & 127) | 128, 1);
    put_fixed(m, value, 1);
}

/* Fields: number and wire type (0 varint, 1 and 5 fixed, 2 bytes). */
static void put_bytes(message *m, int field, const void *bytes, size_t n)
{
    put_varint(m, (uint64_t)field << 3 | 2);
    put_varint(m, n);
    if (n > sizeof m->at - m->n) n = sizeof m->at - m->n;
    memcpy(m->at + m->n, bytes, n);
    m->n += n;
}

static void put_double(message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_varint(m, (uint64_t)field << 3 | 1);
    put_fixed(m, bits, 8);
}

static void put_float(message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_varint(m, (uint64_t)field << 3 | 5);
    put_fixed(m, bits, 4);
}

/* Event: 1 wall time, 2 step, 3 file version, 5 summary, 7 session log. */
static void begin_event(message *m, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    m->n = 0;
    put_double(m, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_varint(m, 2 << 3);
    put_varint(m, (uint64_t)step);
}

static void write_event(event_file *e, const message *m)
{
    message frame = { .n = 0 };
    put_fixed(&frame, m->n, 8);
    put_fixed(&frame, crc(frame.at, 8), 4);
    fwrite(frame.at, 1, frame.n, e->file);
    fwrite(m->at, 1, m->n, e->file);
    frame.n = 0;
    put_fixed(&frame, crc(m->at, m->n), 4);
    fwrite(frame.at, 1, frame.n, e->file);
    fflush(e->file); /* TensorBoard looks at the file while it grows */
}

int events_open(event_file *e, const char *folder, int64_t step)
{
    static const uint8_t start[] = { 1 << 3, 1 }; /* SessionLog: status START, from which TensorBoard drops later steps of earlier files */
    char path[4200];
    message m;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return say_error(NULL, NULL, "cannot make folder \"%s\": %s", folder, strerror(errno));
    snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.linnet.%ld", folder, (long long)time(NULL), (long)getpid());
    e->file = fopen(path, "wbx");
    if (!e->file) return say_error(NULL, NULL, "cannot write \"%s\": %s", path, strerror(errno));
    begin_event(&m, 0);
    put_bytes(&m, 3, "brain.Event:2", 13);
    write_event(e, &m);
    if (step > 0) {
        begin_event(&m, step + 1);
        put_bytes(&m, 7, start, sizeof start);
        write_event(e, &m);
    }
    return 0;
}

void events_put(event_file *e, int64_t step, const char *const *names, const double *values, int n)
{
    message m, summary = { .n = 0 };
    if (!e->file) return;
    for (int i = 0; i < n; i++) {
        message value = { .n = 0 };
        if (!isfinite(values[i])) continue;
        put_bytes(&value, 1, names[i], strlen(names[i]));
        put_float(&value, 2, (float)values[i]);
        put_bytes(&summary, 1, value.at, value.n);
    }
    begin_event(&m, step);
    put_bytes(&m, 5, summary.at, summary.n);
    if (summary.n) write_event(e, &m);
}

int events_close(event_file *e)
{
    if (!e->file) return 0;
    const bool bad = ferror(e->file) != 0;
    const bool lost = fclose(e->file) != 0;
    e->file = NULL;
    return bad || lost ? say_error(NULL, NULL, "the event file for TensorBoard could not be written to its end") : 0;
}
