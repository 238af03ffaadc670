/* Whether the address sanitizer is in: code runs five to twenty times as slowly there, and what shows it no access that other tests do not show is
 * left to the build without it. */
#ifndef LINNET_TESTS_SANITIZED_H
#define LINNET_TESTS_SANITIZED_H

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#endif
