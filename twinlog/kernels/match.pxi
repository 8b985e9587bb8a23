# Queue entries compared with the records they lead to. Included by ``_compiled.pyx``; described in
# ``match.py``, the plain twin.

cdef enum:
    PIECE_BYTES = 8192


cdef inline int _is_entry(
    const uint8_t *p, const uint8_t *entry, const uint8_t *topic, int64_t topic_length,
    int64_t queue, int64_t number
) except -1:
    """Whether the record at ``p``, of the entry's size, is the one that the entry speaks of."""
    cdef Parts parts
    cdef int64_t size = _u32(entry + 8)
    if _parts(p, size, &parts) or parts.size != size or _rest(&parts):
        return False
    if parts.flag & TRANSACTION == PREPARED or parts.flag & TRANSACTION == ROLLBACK:
        return False
    if _i64(p + 20) != number or _i32(p + 12) != queue or parts.topic_length != topic_length:
        return False
    if memcmp(parts.topic, topic, topic_length) != 0:
        return False
    return _tags_code(&parts) == _i64(entry + 12)


def match_entries(
    data, int64_t base, entries, bytes topic not None, int64_t queue, int64_t first, uint32_t crc=0
):
    """See `match.match_entries`."""
    cdef Py_buffer view, held
    cdef const uint8_t *p
    cdef const uint8_t *entry
    cdef const uint8_t *name = <const uint8_t *>PyBytes_AS_STRING(topic)
    cdef int64_t name_length = len(topic)
    cdef Py_ssize_t count, number = 0, stop, each
    cdef uint64_t begin, end = 0, start = 0, joined = <uint64_t>-1, size, length
    cdef list found = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &held, PyBUF_SIMPLE)
        try:
            p = <const uint8_t *>view.buf
            entry = <const uint8_t *>held.buf
            length, count = view.len, held.len // 20
            while number < count:
                begin = _u64(entry + 20 * number) - <uint64_t>base
                if begin < end or begin > length:
                    return number
                stop, end = number, begin
                while stop < count and end - begin < PIECE_BYTES:
                    size = _u32(entry + 20 * stop + 8)
                    if _u64(entry + 20 * stop) - <uint64_t>base != end or size > length - end:
                        break
                    end += size
                    stop += 1
                if stop == number:
                    return number
                # The CRC goes first: it reads in a row what would else be fetched line by line.
                crc = twinlog_crc32c(crc, p + begin, end - begin)
                if begin != joined:
                    if number:
                        found += start, joined
                    start = begin
                joined = end
                for each in range(number, stop):
                    if not _is_entry(
                        p + begin, entry + 20 * each, name, name_length, queue, first + each
                    ):
                        return each
                    begin += _u32(entry + 20 * each + 8)
                number = stop
        finally:
            PyBuffer_Release(&held)
    finally:
        PyBuffer_Release(&view)
    if count:
        found += start, joined
    return found, crc
