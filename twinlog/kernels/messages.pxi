# Messages cut out of an answer. Included by ``_compiled.pyx``; described in ``messages.py``, the plain
# twin.

cdef extern from "Python.h":
    object PyType_GenericAlloc(type kind, Py_ssize_t items)
    int PyObject_GenericSetAttr(object target, object name, object value) except -1

cdef enum:
    AT_ONCE = 0x81

cdef str _OFFSET = "queue_offset"
cdef str _BODY = "body"
cdef str _REST = "_rest"


cdef object _message(type kind, Parts *parts):
    """A message with bytes of its own: past constructor and ``__setattr__`` of its class."""
    cdef object message = PyType_GenericAlloc(kind, 0)
    cdef Py_ssize_t head = parts.body - parts.at
    cdef Py_ssize_t tail = parts.size - head - parts.body_length
    cdef bytes rest = PyBytes_FromStringAndSize(NULL, head + tail)
    cdef char *to = PyBytes_AS_STRING(rest)
    memcpy(to, parts.at, head)
    memcpy(to + head, parts.body + parts.body_length, tail)
    PyObject_GenericSetAttr(message, _OFFSET, _i64(parts.at + 20))
    PyObject_GenericSetAttr(
        message, _BODY, PyBytes_FromStringAndSize(<const char *>parts.body, parts.body_length)
    )
    PyObject_GenericSetAttr(message, _REST, rest)
    return message


def cut_messages(data, type kind not None, other, int64_t low, int64_t high):
    """See `messages.cut_messages`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef int code = FINE
    cdef int64_t at = 0, end, number
    cdef const uint8_t *p
    cdef list found = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t *>view.buf
        end = view.len
        with nogil:
            while at < end:
                if end - at >= 8 and _u32(p + at + 4) == MAGIC_BLANK:
                    code = BLANK
                    break
                code = _accept(p + at, end - at, &parts, True)
                if code:
                    break
                at += parts.size
        if code:
            return at, code
        at = 0
        while at < end:
            _parts(p + at, end - at, &parts)
            if parts.flag & AT_ONCE:
                record = PyBytes_FromStringAndSize(<const char *>p + at, parts.size)
                for message in other(record):
                    if message.queue_offset >= high:
                        return found
                    if message.queue_offset >= low:
                        found.append(message)
            else:
                number = _i64(p + at + 20)
                if number >= high:
                    return found
                if number >= low:
                    found.append(_message(kind, &parts))
            at += parts.size
    finally:
        PyBuffer_Release(&view)
    return found
