// Matrix products of float32 tensors on a processor's units for bfloat16 products (AMX); see amx.py.
//
// A float32 number is the sum of up to three bfloat16 numbers, x = x1 + x2 + x3. Each part is the rounded remainder after the parts before
// it, and holds 8 of the 24 bits of the significand. The units multiply bfloat16 numbers exactly and sum in float32. The kernel sums
//   with 1 part:  x1 y1
//   with 2 parts: x1 y1 + x1 y2 + x2 y1
//   with 3 parts: x1 y1 + x1 y2 + x2 y1 + x1 y3 + x2 y2 + x3 y1
// and omits terms below 2^-8, 2^-16 and 2^-24 of the product. Splitting costs time in proportion to the size of a factor. The units are so
// fast that six of their products take less time than one in float32.

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace {

// A tile is 16 rows of 64 bytes. A tile of the left factor holds 16 rows of 32 numbers along the inner dimension. A tile of the right factor
// holds, for each of 16 columns, 16 pairs along the inner dimension: [pair][column][2]. The tiles of a number's parts are adjacent in memory.
constexpr int64_t kTile = 1024, kEdge = 16, kInner = 32;

template <typename T>  // float, or uint16_t for bfloat16
struct Factor {
  const T* data;
  int64_t outer, inner;                // sizes; outer counts the rows of the left factor or the columns of the right one
  int64_t outer_stride, inner_stride;  // one of them is 1
};

// Forces pending writes to memory, because compilers do not know that loads of tiles read it.
void written(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

__mmask16 first(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1; }

// The nearest bfloat16 number, as float32. Ties round away from 0, which is harmless because the remainder is kept. Overflows to infinity.
__m512 rounded(__m512 x) {
  const __m512i half = _mm512_set1_epi32(0x8000), kept = _mm512_set1_epi32(0xffff0000);
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), kept));
}

// Writes the parts of 16 numbers at x and 16 at y, with 0 where a mask is 0. If kAlong, x comes before y; otherwise they are interleaved.
template <int kParts, bool kAlong>
void split(const float* x, __mmask16 x_mask, const float* y, __mmask16 y_mask, __m512i order, char* to) {
  __m512 u = _mm512_maskz_loadu_ps(x_mask, x), v = _mm512_maskz_loadu_ps(y_mask, y);
  for (int part = 0; part + 1 < kParts; part++, to += kTile) {
    const __m512 a = rounded(u), b = rounded(v);
    const __m512i i = _mm512_castps_si512(a), j = _mm512_castps_si512(b);
    _mm512_store_si512(to, kAlong ? _mm512_permutex2var_epi16(i, order, j) : _mm512_or_si512(_mm512_srli_epi32(i, 16), j));
    u = _mm512_sub_ps(u, a);  // exact
    v = _mm512_sub_ps(v, b);
  }
  const __m512i last = (__m512i)_mm512_cvtne2ps_pbh(v, u);  // rounds to nearest and keeps NaN
  _mm512_store_si512(to, kAlong ? last : _mm512_permutexvar_epi16(order, last));
}

template <int kParts, bool kAlong>
void split(const uint16_t* x, __mmask16 x_mask, const uint16_t* y, __mmask16 y_mask, __m512i order, char* to) {
  const __m256i u = _mm256_maskz_loadu_epi16(x_mask, x), v = _mm256_maskz_loadu_epi16(y_mask, y);
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(u), v, 1);
  _mm512_store_si512(to, kAlong ? both : _mm512_permutexvar_epi16(order, both));
}

void transpose(char* tile) {  // of 16 x 16 pairs
  __m512i r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_load_si512(tile + 64 * i);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
  for (int i = 0; i < 16; i++) _mm512_store_si512(tile + 64 * i, r[i]);
}

template <int kParts, bool kAlong, typename T>
void pack(const Factor<T>& f, bool left, char* to) {
  alignas(64) static const uint16_t odd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                               33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  alignas(64) static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                               8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kAlong ? odd : zip);
  for (int64_t o = 0; o < f.outer; o += kEdge)
    for (int64_t k = 0; k < f.inner; k += kInner, to += kTile * kParts) {
      const T* from = f.data + o * f.outer_stride + k * f.inner_stride;
      const int64_t outer = f.outer - o, inner = f.inner - k;  // the remaining sizes
      const __mmask16 x_mask = first(kAlong ? inner : outer), y_mask = first(kAlong ? inner - kEdge : outer);
      for (int i = 0; i < 16; i++) {
        if (kAlong) {
          const T* x = from + i * f.outer_stride;
          split<kParts, kAlong>(x, i < outer ? x_mask : 0, x + kEdge, i < outer ? y_mask : 0, order, to + 64 * i);
        } else {
          const T* x = from + 2 * i * f.inner_stride;
          const __mmask16 mask = 2 * i < inner ? x_mask : 0, other = 2 * i + 1 < inner ? y_mask : 0;
          split<kParts, kAlong>(x, mask, x + f.inner_stride, other, order, to + 64 * i);
        }
      }
      if (kAlong != left)
        for (int part = 0; part < kParts; part++) transpose(to + part * kTile);
    }
}

// Packs a factor into tiles, [outer / 16][inner / 32][parts], padded with zeros.
template <int kParts, typename T>
void pack(const Factor<T>& f, bool left, char* to) {
  f.inner_stride == 1 ? pack<kParts, true>(f, left, to) : pack<kParts, false>(f, left, to);
}

// Tiles 0 to 3 hold the sums, a block of 2 x 2; tiles 4 and 5 hold the left factor, 6 and 7 the right one.
#define LEFT(part) \
  _tile_loadd(4, a + kTile * (part), 64); \
  if (kRows == 2) _tile_loadd(5, a + next + kTile * (part), 64);
#define RIGHT(part) \
  _tile_loadd(6, b + kTile * (part), 64); \
  if (kColumns == 2) _tile_loadd(7, b + next + kTile * (part), 64);
#define MULTIPLY \
  _tile_dpbf16ps(0, 4, 6); \
  if (kColumns == 2) _tile_dpbf16ps(1, 4, 7); \
  if (kRows == 2) _tile_dpbf16ps(2, 5, 6); \
  if (kRows == 2 && kColumns == 2) _tile_dpbf16ps(3, 5, 7);

template <int kParts, int kRows, int kColumns>
void multiply(const char* a, const char* b, int64_t steps, int64_t next) {
  for (int64_t k = 0; k < steps; k++, a += kTile * kParts, b += kTile * kParts) {  // in the order that needs the fewest loads
    if (kParts == 1) { LEFT(0) RIGHT(0) MULTIPLY }
    if (kParts == 2) { LEFT(0) RIGHT(1) MULTIPLY RIGHT(0) MULTIPLY LEFT(1) MULTIPLY }
    if (kParts == 3) { LEFT(0) RIGHT(2) MULTIPLY RIGHT(1) MULTIPLY LEFT(1) MULTIPLY RIGHT(0) MULTIPLY LEFT(2) MULTIPLY LEFT(0) MULTIPLY }
  }
}

template <int kNumber>
void load(const float* from, int64_t stride) {  // the number of a tile must be a constant
  if (kNumber == 0) _tile_loadd(0, from, stride * 4);
  if (kNumber == 1) _tile_loadd(1, from, stride * 4);
  if (kNumber == 2) _tile_loadd(2, from, stride * 4);
  if (kNumber == 3) _tile_loadd(3, from, stride * 4);
}

template <int kNumber>
void store(float* to, int64_t stride) {
  if (kNumber == 0) _tile_stored(0, to, stride * 4);
  if (kNumber == 1) _tile_stored(1, to, stride * 4);
  if (kNumber == 2) _tile_stored(2, to, stride * 4);
  if (kNumber == 3) _tile_stored(3, to, stride * 4);
}

// Loads a 16 x 16 tile of a result, of which only rows x columns exist.
template <int kNumber>
void resume(const float* from, int64_t stride, int64_t rows, int64_t columns) {
  if (rows >= kEdge && columns >= kEdge) return load<kNumber>(from, stride);
  alignas(64) float whole[kEdge * kEdge] = {};
  for (int64_t i = 0; i < std::min(rows, kEdge); i++)
    _mm512_store_ps(whole + kEdge * i, _mm512_maskz_loadu_ps(first(columns), from + i * stride));
  written(whole);
  load<kNumber>(whole, kEdge);
}

template <int kNumber>
void finish(float* to, int64_t stride, int64_t rows, int64_t columns) {
  if (rows >= kEdge && columns >= kEdge) return store<kNumber>(to, stride);
  alignas(64) float whole[kEdge * kEdge];
  store<kNumber>(whole, kEdge);
  for (int64_t i = 0; i < std::min(rows, kEdge); i++)
    _mm512_mask_storeu_ps(to + i * stride, first(columns), _mm512_load_ps(whole + kEdge * i));
}

template <int kNumber>
void finish(uint16_t* to, int64_t stride, int64_t rows, int64_t columns) {
  alignas(64) float whole[kEdge * kEdge];
  store<kNumber>(whole, kEdge);
  for (int64_t i = 0; i < std::min(rows, kEdge); i++)
    _mm256_mask_storeu_epi16(to + i * stride, first(columns), (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(whole + kEdge * i)));
}

template <int kNumber>
void resume(const uint16_t*, int64_t, int64_t, int64_t) {}  // sums in bfloat16 are never resumed

template <int kParts, int kRows, int kColumns, typename T>
void block(const char* a, const char* b, int64_t steps, int64_t next, bool begun, T* c, int64_t stride, int64_t rows, int64_t columns) {
  T* below = c + kEdge * stride;
  if (begun) {
    resume<0>(c, stride, rows, columns);
    if (kColumns == 2) resume<1>(c + kEdge, stride, rows, columns - kEdge);
    if (kRows == 2) resume<2>(below, stride, rows - kEdge, columns);
    if (kRows == 2 && kColumns == 2) resume<3>(below + kEdge, stride, rows - kEdge, columns - kEdge);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  written(a);
  written(b);
  multiply<kParts, kRows, kColumns>(a, b, steps, next);
  finish<0>(c, stride, rows, columns);
  if (kColumns == 2) finish<1>(c + kEdge, stride, rows, columns - kEdge);
  if (kRows == 2) finish<2>(below, stride, rows - kEdge, columns);
  if (kRows == 2 && kColumns == 2) finish<3>(below + kEdge, stride, rows - kEdge, columns - kEdge);
}

char* scratch(size_t size) {  // memory of this thread, aligned to the rows of tiles
  struct Memory {
    char* data = nullptr;
    size_t size = 0;
    ~Memory() { free(data); }
  };
  static thread_local Memory memory;
  if (size > memory.size) {
    free(memory.data);
    memory.data = static_cast<char*>(aligned_alloc(64, size));
    memory.size = memory.data ? size : 0;
  }
  return memory.data;
}

template <int kParts, typename T>
bool product(const Factor<T>& left, const Factor<T>& right, T* c) {
  const int64_t steps = (left.inner + kInner - 1) / kInner, columns = right.outer;
  const int64_t row_tiles = (left.outer + kEdge - 1) / kEdge, column_tiles = (columns + kEdge - 1) / kEdge;
  // The number of steps along the inner dimension at a time, chosen so that packed tiles stay in the caches: two rows of the left factor's
  // tiles in the first-level cache, all of the right factor's in the second.
  const int64_t most = sizeof(T) == 2 ? steps : kParts == 3 ? 4 : 8;
  char* a = scratch((2 + column_tiles) * std::min(most, steps) * kTile * kParts);
  if (!a) return false;
  for (int64_t k = 0; k < steps; k += most) {
    const int64_t taken = std::min(most, steps - k), next = taken * kTile * kParts, inner = std::min(left.inner - k * kInner, taken * kInner);
    char* b = a + 2 * next;
    pack<kParts>(Factor<T>{right.data + k * kInner * right.inner_stride, columns, inner, right.outer_stride, right.inner_stride}, false, b);
    for (int64_t i = 0; i < row_tiles; i += 2) {
      const int64_t rows = left.outer - i * kEdge;
      const T* from = left.data + i * kEdge * left.outer_stride + k * kInner * left.inner_stride;
      pack<kParts>(Factor<T>{from, std::min(rows, 2 * kEdge), inner, left.outer_stride, left.inner_stride}, true, a);
      for (int64_t j = 0; j < column_tiles; j += 2) {
        const bool two_rows = i + 1 < row_tiles, two_columns = j + 1 < column_tiles;
        const auto of = two_rows ? (two_columns ? block<kParts, 2, 2, T> : block<kParts, 2, 1, T>)
                                 : (two_columns ? block<kParts, 1, 2, T> : block<kParts, 1, 1, T>);
        of(a, b + j * next, taken, next, k > 0, c + i * kEdge * columns + j * kEdge, columns, rows, columns - j * kEdge);
      }
    }
  }
  return true;
}

template <int kParts, typename T>
bool products(const T* a, int64_t a_batch, int64_t a_row, int64_t a_inner, const T* b, int64_t b_batch, int64_t b_inner,
              int64_t b_column, T* c, int64_t batch, int64_t rows, int64_t inner, int64_t columns) {
  bool done = true;
  for (int64_t n = 0; n < batch && done; n++)
    done = product<kParts, T>({a + n * a_batch, rows, inner, a_row, a_inner}, {b + n * b_batch, columns, inner, b_column, b_inner},
                              c + n * rows * columns);
  return done;
}

struct alignas(64) Layout {  // the configuration of all tiles, in the processor's format
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace

extern "C" {

// Requests the tiles from the system. Returns 0 if this process may use them.
__attribute__((visibility("default"))) int taac_amx_request() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData);
}

// c[n] = a[n] b[n] for n below batch, where a[n] is rows x inner and b[n] is inner x columns. c is contiguous. All are float, or bfloat16
// if parts is 0. Returns 0 on success, 1 if out of memory.
__attribute__((visibility("default"))) int taac_amx_product(const void* a, int64_t a_batch, int64_t a_row, int64_t a_inner, const void* b,
                                                            int64_t b_batch, int64_t b_inner, int64_t b_column, void* c, int64_t batch,
                                                            int64_t rows, int64_t inner, int64_t columns, int64_t parts) {
  static const Layout layout;
  const auto in = [&](auto of, auto* from, auto* other, auto* to) {
    return of(from, a_batch, a_row, a_inner, other, b_batch, b_inner, b_column, to, batch, rows, inner, columns);
  };
  _tile_loadconfig(&layout);
  bool done;
  if (parts == 0) {
    done = in(products<1, uint16_t>, static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), static_cast<uint16_t*>(c));
  } else {
    const auto of = parts == 1 ? products<1, float> : parts == 2 ? products<2, float> : products<3, float>;
    done = in(of, static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c));
  }
  _tile_release();
  return !done;
}

// The same product in the form that torch's compiler calls, for two tensors of 2 or 3 dimensions.
__attribute__((visibility("default"))) AOTITorchError aoti_torch_cpu_amx_product(AtenTensorHandle a, AtenTensorHandle b, int64_t parts,
                                                                                 AtenTensorHandle* result) {
  int64_t dims, *a_sizes, *b_sizes, *a_strides, *b_strides;
  void *a_data, *b_data, *c_data;
  if (aoti_torch_get_dim(a, &dims) || aoti_torch_get_sizes(a, &a_sizes) || aoti_torch_get_sizes(b, &b_sizes) ||
      aoti_torch_get_strides(a, &a_strides) || aoti_torch_get_strides(b, &b_strides) || aoti_torch_get_data_ptr(a, &a_data) ||
      aoti_torch_get_data_ptr(b, &b_data))
    return 1;
  const bool many = dims == 3;
  const int64_t batch = many ? a_sizes[0] : 1, rows = a_sizes[dims - 2], inner = a_sizes[dims - 1], columns = b_sizes[dims - 1];
  const int64_t sizes[] = {batch, rows, columns}, strides[] = {rows * columns, columns, 1};
  int32_t type;
  if (aoti_torch_get_dtype(a, &type) ||
      aoti_torch_empty_strided(dims, sizes + !many, strides + !many, type, aoti_torch_device_type_cpu(), 0, result) ||
      aoti_torch_get_data_ptr(*result, &c_data))
    return 1;
  return taac_amx_product(a_data, many ? a_strides[0] : 0, a_strides[dims - 2], a_strides[dims - 1], b_data, many ? b_strides[0] : 0,
                          b_strides[dims - 2], b_strides[dims - 1], c_data, batch, rows, inner, columns,
                          type == aoti_torch_dtype_bfloat16() ? 0 : parts);
}

}  // extern "C"
